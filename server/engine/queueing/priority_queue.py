"""The requests of one priority: which wait, which run, and which to admit next. Pure.

Two budgets limit admission: rows (a request reserves all that its search may come to have) and padded source positions
(requests x the widest padded source, which is what the encoder memory takes). The oldest request always goes first, and
is waited for if it does not fit. Beside it, those of the next WINDOW in the queue are admitted whose padded width is
nearest to its own, because a batch is padded to its widest source. MAX_OVERTAKEN bounds how often a request is passed.
"""

import math
from collections import Counter, OrderedDict
from itertools import islice

from attendant.runtime.stepper import padded_width
from attendant.server.engine.request import EngineRequest

WINDOW = 64
"""How many waiting requests are searched for some of like length."""

MAX_OVERTAKEN = 64
"""Fairness bound: at most this many later requests are admitted before a waiting one."""


class PriorityQueue:
    """Two collections, in order of arrival: waiting and running.

    Attributes:
        reserved_rows: of all that run.
    """

    def __init__(self) -> None:
        # With its place in order of arrival: how many are admitted before it if nobody overtakes.
        self._waiting: OrderedDict[int, tuple[EngineRequest, int]] = OrderedDict()
        self._running: dict[int, EngineRequest] = {}
        self._running_widths: Counter[int] = Counter()
        self._num_admitted = 0
        self.reserved_rows = 0

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def __contains__(self, key: int) -> bool:
        return key in self._waiting or key in self._running

    def __bool__(self) -> bool:
        return bool(self._waiting or self._running)

    def add(self, request: EngineRequest) -> None:
        self._waiting[request.key] = request, self._num_admitted + len(self._waiting)

    def remove(self, key: int) -> EngineRequest | None:
        """Takes a request out, whether it waits or runs. None: not here."""
        if (entry := self._waiting.pop(key, None)) is not None:
            return entry[0]
        if (request := self._running.pop(key, None)) is not None:
            self.reserved_rows -= request.max_rows
            width = width_of(request)
            self._running_widths[width] -= 1
            if not self._running_widths[width]:
                del self._running_widths[width]
        return request

    def admit(self, max_rows: int, max_positions: int, max_joining_positions: float = math.inf) -> list[EngineRequest]:
        """Moves requests from waiting to running, and returns them.

        Args:
            max_rows, max_positions: of all that run; a single request always fits.
            max_joining_positions: of those that join now, padded to their widest; at least one may.
        """
        admitted: list[EngineRequest] = []
        if not self._waiting:
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
            del self._waiting[request.key]
            self._running[request.key] = request
            self._running_widths[width] += 1
            self._num_admitted += 1
            self.reserved_rows += request.max_rows
            admitted.append(request)
        return admitted

    def _in_turn(self, room: int) -> list[EngineRequest]:
        """The requests that may be admitted now, in the order in which they would be."""
        if len(self._waiting) <= 1 or room <= 0:
            return [request for request, _ in islice(self._waiting.values(), 1)]
        window = list(islice(self._waiting.values(), WINDOW))
        num_overdue = 1
        for _, place in window[1:]:
            if self._num_admitted < place + MAX_OVERTAKEN:
                break
            num_overdue += 1
        first = width_of(window[0][0])
        passable = [request for request, _ in window[num_overdue:]]
        # Sorting is stable: of like widths the one that came first goes first.
        passable.sort(key=lambda request: abs(width_of(request) - first))
        return [request for request, _ in window[:num_overdue]] + passable


def width_of(request: EngineRequest) -> int:
    """The positions that its source takes, padded."""
    return padded_width(len(request.source_ids))
