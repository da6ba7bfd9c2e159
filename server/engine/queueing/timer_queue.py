"""Requests by a time of theirs: the deadline, or the time by which they must have begun. Pure."""

import heapq
import math
from collections.abc import Callable

MAX_OLD = 64


class TimerQueue:
    """A heap of keys by their times. Those that have ended before their times are removed now and then."""

    def __init__(self, has: Callable[[int], bool]) -> None:
        """`has`: whether a key still matters."""
        self._has = has
        self._heap: list[tuple[float, int]] = []

    def add(self, time: float, key: int, num_present: int) -> None:
        """`num_present`: keys that still matter, at most."""
        heapq.heappush(self._heap, (time, key))
        # Keys that ended long before their times must not pile up.
        if len(self._heap) > 2 * num_present + MAX_OLD:
            self._heap = [one for one in self._heap if self._has(one[1])]
            heapq.heapify(self._heap)

    @property
    def next_time(self) -> float:
        """Before it, nothing is due."""
        return self._heap[0][0] if self._heap else math.inf

    def due(self, now: float) -> list[int]:
        """The keys whose time has come, each returned once."""
        keys: list[int] = []
        while self._heap and self._heap[0][0] <= now:
            _, key = heapq.heappop(self._heap)
            if self._has(key):
                keys.append(key)
        return keys
