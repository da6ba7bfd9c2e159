"""Which of many requests have reached their moment: a deadline, or when they had to begin. Pure."""

import heapq
from collections.abc import Callable

MAX_OLD = 64


class Moments:
    """Keys in the order of their moments. Those that have ended before their moments are purged now and then."""

    def __init__(self, has: Callable[[int], bool]) -> None:
        """`has`: whether a key still matters."""
        self._has = has
        self._heap: list[tuple[float, int]] = []

    def add(self, moment: float, key: int, num_present: int) -> None:
        """`num_present`: keys that still matter, at most."""
        heapq.heappush(self._heap, (moment, key))
        # What ended long before its moment must not pile up; now and then, so it costs next to nothing.
        if len(self._heap) > 2 * num_present + MAX_OLD:
            self._heap = [one for one in self._heap if self._has(one[1])]
            heapq.heapify(self._heap)

    def reached(self, now: float) -> list[int]:
        """Those whose moment has come, each told once."""
        keys: list[int] = []
        while self._heap and self._heap[0][0] <= now:
            _, key = heapq.heappop(self._heap)
            if self._has(key):
                keys.append(key)
        return keys
