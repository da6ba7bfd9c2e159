"""Who waits, who runs, and whose turn it is. Pure: no tensors, no threads, no clock of its own, no I/O.

Interactive and bulk requests stand in lanes of their own, each with the whole budget, and are stepped apart:
a round of the engine is a lane's. An interactive request is thus admitted at the next step however much bulk work there
is, and its steps are no longer for it: while interactive work runs, bulk rows stand still, their state kept, but for
the share of the time that keeps bulk work from starving (allowance.py). A bulk round is one call into the model, as
large as the time that an interactive request may be made to wait.
"""

import heapq
import math
from dataclasses import dataclass

from attendant.server.engine.queueing.batch_budget import Allowance, Turns
from attendant.server.engine.queueing.priority_queue import Lane
from attendant.server.engine.request import EngineRequest, Priority

MAX_OLD_DEADLINES = 64

BULK_SHARE = 0.1
"""Of the engine's time, for bulk work while interactive work never ends."""

INITIAL_BULK_ROWS = 8
INITIAL_BULK_POSITIONS = 128

JOINING_PART = 4
"""Bulk requests join when a part of this size of their rows is free: an encoding of several costs less than several."""

COMPANY_PART = 8
"""Interactive requests join at once while they are at least this part of those that run; otherwise they wait for
company, for the same reason: encoding four takes 2.4 times as long as encoding one."""

MAX_COMPANY_STEPS = 4
"""Steps that an interactive request waits for company at most."""


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
    """Two lanes and what decides between them."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self._interactive, self._bulk = Lane(), Lane()
        self._lanes = {Priority.INTERACTIVE: self._interactive, Priority.BULK: self._bulk}
        self._turns = Turns(BULK_SHARE)
        # Rounds since interactive requests have begun to wait for company.
        self._num_held = 0
        self._bulk_rows = _allowance(budget, INITIAL_BULK_ROWS)
        self._bulk_positions = _allowance(budget, INITIAL_BULK_POSITIONS)
        # (deadline, key), the next one first. A request that ended earlier leaves its entry behind for a while.
        self._deadlines: list[tuple[float, int]] = []

    def num_waiting(self, priority: Priority) -> int:
        return self._lanes[priority].num_waiting

    @property
    def num_running(self) -> int:
        return sum(lane.num_running for lane in self._lanes.values())

    @property
    def has_work(self) -> bool:
        return bool(self._interactive or self._bulk)

    def add(self, request: EngineRequest) -> None:
        """Puts a request at the end of its lane.

        Its key must be new, and its rows no more than the budget has in all.
        """
        assert request.max_rows <= self.budget.max_rows, "a request that can never run was let in"
        assert not any(request.key in lane for lane in self._lanes.values())
        self._lanes[request.priority].add(request)
        if request.deadline is not None:
            heapq.heappush(self._deadlines, (request.deadline, request.key))
            self._forget_old_deadlines()

    def turn(self) -> Priority:
        """Whose round the next one is."""
        if self._is_contended:
            return Priority.BULK if self._turns.is_bulk_turn() else Priority.INTERACTIVE
        return Priority.BULK if self._bulk else Priority.INTERACTIVE

    def admit(self, priority: Priority) -> list[EngineRequest]:
        """Moves those of a lane whose turn it is, and who fit, to running, and returns them."""
        lane, budget = self._lanes[priority], self.budget
        if priority is Priority.INTERACTIVE:
            if self._wait_for_company(lane):
                return []
            return lane.admit(budget.max_rows, budget.max_source_positions)
        max_rows, max_joining = budget.max_rows, math.inf
        if self._bulk_rows is not None and self._bulk_positions is not None:
            max_rows, max_joining = min(max_rows, self._bulk_rows.units), self._bulk_positions.units
        if lane.num_running and max_rows - lane.reserved_rows < max_rows / JOINING_PART:
            return []
        return lane.admit(max_rows, budget.max_source_positions, max_joining)

    def note_round(self, priority: Priority, seconds: float) -> None:
        """A lane had its round, and it took so long; before what ended in it is removed."""
        self._turns.note(bulk=priority is Priority.BULK, seconds=seconds, contended=self._is_contended)

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
        """Takes a request out, wherever it is: it ended, its client went, its deadline passed. None: not here."""
        for lane in self._lanes.values():
            if (request := lane.remove(key)) is not None:
                return request
        return None

    def _wait_for_company(self, lane: Lane) -> bool:
        """Whether those that wait do so for one more step, so that more are encoded and join at once."""
        few = 0 < lane.num_waiting * COMPANY_PART < lane.num_running
        waits = few and self._num_held < MAX_COMPANY_STEPS
        self._num_held = self._num_held + 1 if waits else 0
        return waits

    @property
    def _is_contended(self) -> bool:
        return bool(self._bulk and self._interactive)

    def _has(self, key: int) -> bool:
        return any(key in lane for lane in self._lanes.values())

    def _forget_old_deadlines(self) -> None:
        """Keeps what ended long before its deadline from piling up; now and then, so it costs next to nothing."""
        num_requests = sum(lane.num_waiting + lane.num_running for lane in self._lanes.values())
        if len(self._deadlines) > 2 * num_requests + MAX_OLD_DEADLINES:
            self._deadlines = [one for one in self._deadlines if self._has(one[1])]
            heapq.heapify(self._deadlines)


def _allowance(budget: Budget, initial: int) -> Allowance | None:
    return None if budget.bulk_seconds is None else Allowance(budget.bulk_seconds, initial)
