"""Who waits, who runs, and which priority has the next round. Pure: no tensors, threads, clock or I/O.

Interactive and bulk requests have a queue each, with the whole budget, and are stepped apart: a round of the engine
belongs to one priority. So an interactive request is admitted at the next step however much bulk work there is, and its
steps take no longer for it. While interactive work runs, bulk rows pause with their state kept; a fair share of the
time keeps bulk work from starving. A bulk round is one call into the model, no longer than an interactive request may
be made to wait for it.
"""

import heapq
import math
from dataclasses import dataclass

from attendant.server.engine.queueing.batch_budget import BatchBudget
from attendant.server.engine.queueing.fair_share import FairShare
from attendant.server.engine.queueing.priority_queue import PriorityQueue
from attendant.server.engine.request import EngineRequest, Priority

MAX_OLD_DEADLINES = 64

BULK_SHARE = 0.1
"""Of the engine's time, for bulk work while interactive work never ends."""

INITIAL_BULK_ROWS = 8
INITIAL_BULK_POSITIONS = 128

MIN_FREE_PART = 4
"""Bulk requests join when 1/4 of their rows is free: encoding several together costs less than one by one."""

MIN_NEWCOMERS_PART = 8
"""Interactive requests join at once if they are at least 1/8 of those that run. Otherwise they wait to fill a batch:
encoding four together takes 2.4 times as long as encoding one."""

MAX_STEPS_TO_FILL = 4
"""Steps that interactive requests wait to fill a batch, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What may run at once.

    Attributes:
        max_rows: live hypotheses that are stepped together.
        max_source_positions: running requests x the widest padded source, of each priority. A single request always
            fits.
        bulk_seconds: how long a call into the model for bulk work should take; None: as long as it takes.
    """

    max_rows: int
    max_source_positions: int
    bulk_seconds: float | None = None


class Scheduler:
    """A queue per priority, and what decides between them."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self._interactive, self._bulk = PriorityQueue(), PriorityQueue()
        self._queues = {Priority.INTERACTIVE: self._interactive, Priority.BULK: self._bulk}
        self._fair_share = FairShare(BULK_SHARE)
        # Rounds for which interactive requests have waited to fill a batch.
        self._num_waited = 0
        # Without a time per call, the budget of rows is the only limit.
        seconds = budget.bulk_seconds
        self._bulk_rows = None if seconds is None else BatchBudget(seconds, INITIAL_BULK_ROWS)
        self._bulk_positions = None if seconds is None else BatchBudget(seconds, INITIAL_BULK_POSITIONS)
        # (deadline, key), the next one first. A request that ended earlier leaves its entry behind for a while.
        self._deadlines: list[tuple[float, int]] = []

    def num_waiting(self, priority: Priority) -> int:
        return self._queues[priority].num_waiting

    @property
    def num_running(self) -> int:
        return self._interactive.num_running + self._bulk.num_running

    @property
    def has_work(self) -> bool:
        return bool(self._interactive or self._bulk)

    def add(self, request: EngineRequest) -> None:
        """Puts a request at the end of its queue. Its key must be new, its rows no more than the budget has in all."""
        assert request.max_rows <= self.budget.max_rows, "a request that can never run was let in"
        assert not self._has(request.key)
        self._queues[request.priority].add(request)
        if request.deadline is not None:
            heapq.heappush(self._deadlines, (request.deadline, request.key))
            self._forget_old_deadlines()

    def next_priority(self) -> Priority:
        """Whose round the next one is."""
        if self._is_contended:
            return Priority.BULK if self._fair_share.is_bulk_turn() else Priority.INTERACTIVE
        return Priority.BULK if self._bulk else Priority.INTERACTIVE

    def admit(self, priority: Priority) -> list[EngineRequest]:
        """Moves the requests of a priority that may join now to running, and returns them."""
        queue, budget = self._queues[priority], self.budget
        if priority is Priority.INTERACTIVE:
            if self._waits_to_fill_a_batch():
                return []
            return queue.admit(budget.max_rows, budget.max_source_positions)
        max_rows, max_joining = budget.max_rows, math.inf
        if self._bulk_rows is not None and self._bulk_positions is not None:
            max_rows, max_joining = min(max_rows, self._bulk_rows.units), self._bulk_positions.units
        if queue.num_running and max_rows - queue.reserved_rows < max_rows / MIN_FREE_PART:
            return []
        return queue.admit(max_rows, budget.max_source_positions, max_joining)

    def note_round(self, priority: Priority, seconds: float) -> None:
        """A priority's round took so long; called before what ended in it is removed."""
        self._fair_share.note(bulk=priority is Priority.BULK, seconds=seconds, contended=self._is_contended)

    def note_bulk_step(self, seconds: float, num_rows: int) -> None:
        if self._bulk_rows is not None:
            self._bulk_rows.note(seconds, num_rows)

    def note_bulk_encoding(self, seconds: float, num_positions: int) -> None:
        if self._bulk_positions is not None:
            self._bulk_positions.note(seconds, num_positions)

    def expired(self, now: float) -> list[int]:
        """The keys, waiting and running, whose deadline has passed; each is told once."""
        keys: list[int] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, key = heapq.heappop(self._deadlines)
            if self._has(key):
                keys.append(key)
        return keys

    def remove(self, key: int) -> EngineRequest | None:
        """Takes a request out, whether it ended, its client went or its deadline passed. None: not here."""
        request = self._interactive.remove(key)
        return self._bulk.remove(key) if request is None else request

    def _waits_to_fill_a_batch(self) -> bool:
        """Whether waiting interactive requests do so for one more step, so that more are encoded and join at once."""
        queue = self._interactive
        few = 0 < queue.num_waiting * MIN_NEWCOMERS_PART < queue.num_running
        waits = few and self._num_waited < MAX_STEPS_TO_FILL
        self._num_waited = self._num_waited + 1 if waits else 0
        return waits

    @property
    def _is_contended(self) -> bool:
        return bool(self._bulk and self._interactive)

    def _has(self, key: int) -> bool:
        return key in self._interactive or key in self._bulk

    def _forget_old_deadlines(self) -> None:
        """Keeps what ended long before its deadline from piling up; now and then, so it costs next to nothing."""
        num_requests = sum(queue.num_waiting + queue.num_running for queue in self._queues.values())
        if len(self._deadlines) > 2 * num_requests + MAX_OLD_DEADLINES:
            self._deadlines = [one for one in self._deadlines if self._has(one[1])]
            heapq.heapify(self._deadlines)
