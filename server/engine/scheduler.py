"""Who waits and who runs. Pure: no tensors, no threads, no clock of its own, no I/O.

Admission is first come, first served, by two budgets: rows (a request reserves all that its search may come to have)
and padded source positions (requests x the widest padded source: what the encoder memory takes). The first that does
not fit is waited for, so nobody starves behind smaller ones.
"""

import heapq
from collections import OrderedDict
from dataclasses import dataclass

from runtime.stepper import padded_width
from server.engine.request import EngineRequest

MAX_OLD_DEADLINES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What may run at once.

    Attributes:
        max_rows: live hypotheses of all requests.
        max_source_positions: running requests x the widest padded source. A single request always fits.
    """

    max_rows: int
    max_source_positions: int


class Scheduler:
    """Two collections, in order of arrival: waiting and running."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self._waiting: OrderedDict[int, EngineRequest] = OrderedDict()
        self._running: dict[int, EngineRequest] = {}
        self._reserved_rows = 0
        # (deadline, key), the next one first. A request that ended earlier leaves its entry behind for a while.
        self._deadlines: list[tuple[float, int]] = []

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def reserved_rows(self) -> int:
        return self._reserved_rows

    def add(self, request: EngineRequest) -> None:
        """Puts a request at the end of the queue.

        Its key must be new, and its rows no more than the budget has in all.
        """
        assert request.max_rows <= self.budget.max_rows, "a request that can never run was let in"
        assert request.key not in self._waiting and request.key not in self._running
        self._waiting[request.key] = request
        if request.deadline is not None:
            heapq.heappush(self._deadlines, (request.deadline, request.key))
            self._forget_old_deadlines()

    def admit(self) -> list[EngineRequest]:
        """Moves the longest waiting requests that fit to running, and returns them."""
        admitted: list[EngineRequest] = []
        width: int | None = None
        while self._waiting:
            request = next(iter(self._waiting.values()))
            if self._reserved_rows + request.max_rows > self.budget.max_rows:
                break
            if width is None:
                width = max((padded_width(len(r.source_ids)) for r in self._running.values()), default=0)
            wider = max(width, padded_width(len(request.source_ids)))
            if self._running and wider * (len(self._running) + 1) > self.budget.max_source_positions:
                break
            width = wider
            del self._waiting[request.key]
            self._running[request.key] = request
            self._reserved_rows += request.max_rows
            admitted.append(request)
        return admitted

    def expired(self, now: float) -> list[int]:
        """The keys, waiting and running, whose deadline has passed; each is told once."""
        keys: list[int] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, key = heapq.heappop(self._deadlines)
            if key in self._waiting or key in self._running:
                keys.append(key)
        return keys

    def _forget_old_deadlines(self) -> None:
        """Keeps what ended long before its deadline from piling up; now and then, so it costs next to nothing."""
        if len(self._deadlines) > 2 * (len(self._waiting) + len(self._running)) + MAX_OLD_DEADLINES:
            self._deadlines = [one for one in self._deadlines if one[1] in self._waiting or one[1] in self._running]
            heapq.heapify(self._deadlines)

    def remove(self, key: int) -> EngineRequest | None:
        """Takes a request out, wherever it is: it ended, its client went, its deadline passed. None: not here."""
        if (request := self._waiting.pop(key, None)) is not None:
            return request
        if (request := self._running.pop(key, None)) is not None:
            self._reserved_rows -= request.max_rows
        return request
