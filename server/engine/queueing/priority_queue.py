"""The requests of one priority: which wait, which run, and which to admit next. Pure.

Two budgets limit admission: rows (a request reserves all that its search may come to have) and padded source positions
(requests x the widest padded source, which is what the encoder memory takes). Clients take turns (fair_queue.py). The
request whose turn it is always goes first, and is waited for if it does not fit. Beside it, those of the next WINDOW
are admitted whose padded width is nearest to its own, because a batch is padded to its widest source. MAX_OVERTAKEN
bounds how often a request is passed.
"""

import math
from collections import Counter
from itertools import islice
from typing import TypeVar

from attendant.runtime.stepper import padded_width
from attendant.server.engine.queueing.fair_queue import FairQueue
from attendant.server.engine.request import EngineRequest

Counted = TypeVar("Counted", int, str)

WINDOW = 64
"""How many waiting requests are searched for some of like length."""

MAX_OVERTAKEN = 64
"""Fairness bound: at most this many later requests of its client are admitted before a waiting one."""


class PriorityQueue:
    """Two collections: waiting and running.

    Attributes:
        waiting: by client, in the order of their turns.
        reserved_rows: of all that run.
    """

    def __init__(self) -> None:
        self.waiting = FairQueue()
        self._running: dict[int, EngineRequest] = {}
        self._running_widths: Counter[int] = Counter()
        self._running_clients: Counter[str] = Counter()
        self.reserved_rows = 0

    @property
    def num_waiting(self) -> int:
        return len(self.waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_clients(self) -> int:
        """Clients with requests here."""
        return len(self._running_clients) + sum(one not in self._running_clients for one in self.waiting.clients)

    def __contains__(self, key: int) -> bool:
        return key in self.waiting or key in self._running

    def __bool__(self) -> bool:
        return bool(self._running or self.waiting)

    def add(self, request: EngineRequest) -> None:
        self.waiting.add(request)

    def remove(self, key: int) -> EngineRequest | None:
        """Takes a request out, whether it waits or runs. None: not here."""
        if (request := self.waiting.remove(key)) is not None:
            return request
        if (request := self._running.pop(key, None)) is not None:
            self.reserved_rows -= request.max_rows
            _count_down(self._running_widths, width_of(request))
            _count_down(self._running_clients, request.client)
        return request

    def admit(self, max_rows: int, max_positions: int, max_joining_positions: float = math.inf) -> list[EngineRequest]:
        """Moves requests from waiting to running, and returns them.

        Args:
            max_rows, max_positions: of all that run; a single request always fits.
            max_joining_positions: of those that join now, padded to their widest; at least one may.
        """
        admitted: list[EngineRequest] = []
        if not self.waiting:
            return admitted
        joining_width = 0
        running_width = max(self._running_widths, default=0)
        for request in self._in_turn(max_rows - self.reserved_rows):
            width = width_of(request)
            if self._running:
                if self.reserved_rows + request.max_rows > max_rows:
                    break
                if max(running_width, width) * (len(self._running) + 1) > max_positions:
                    break
            joining_width = max(joining_width, width)
            if admitted and joining_width * (len(admitted) + 1) > max_joining_positions:
                break
            running_width = max(running_width, width)
            self.waiting.take(request.key)
            self._running[request.key] = request
            self._running_widths[width] += 1
            self._running_clients[request.client] += 1
            self.reserved_rows += request.max_rows
            admitted.append(request)
        return admitted

    def _in_turn(self, room: int) -> list[EngineRequest]:
        """The requests that may be admitted now, in the order in which they would be."""
        first = self.waiting.first()
        if first is None or len(self.waiting) == 1 or room <= 0:
            return [] if first is None else [first]
        window = list(islice(self.waiting.in_order(), WINDOW))[1:]
        overdue = [request for request, num_overtaken in window if num_overtaken >= MAX_OVERTAKEN]
        passable = [request for request, num_overtaken in window if num_overtaken < MAX_OVERTAKEN]
        # Sorting is stable: of like widths the one whose turn came first goes first.
        passable.sort(key=lambda request: abs(width_of(request) - width_of(first)))
        return [first, *overdue, *passable]


def width_of(request: EngineRequest) -> int:
    """The positions that its source takes, padded."""
    return padded_width(len(request.source_ids))


def _count_down(counter: Counter[Counted], key: Counted) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
