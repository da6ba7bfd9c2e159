"""Who waits, who runs, and which priority has the next round. Pure: no tensors, threads, clock or I/O.

Interactive, heavy and bulk requests have a queue each, with the whole budget, and are stepped apart: a round of the
engine belongs to one priority. So an interactive request is admitted at the next step however much other work there is,
and its steps take no longer for it. While interactive work runs, the other rows pause with their state kept. Shares of
the time keep them from starving: heavy requests get that of their clients among all clients, bulk work a tenth. A round
of theirs is one call into the model, no longer than an interactive request may be made to wait for it.
"""

import math
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from attendant.runtime.stepper import padded_width
from attendant.server.engine.estimates import BatchBudget
from attendant.server.engine.queue import FairQueue, TimerQueue
from attendant.server.engine.request import BulkRoom, EngineRequest, Priority


class FairShare:
    """One party goes first, and the other gets a share of the time, so that it never starves.

    Each round of the first earns the other a part of that round's duration. The other has a round whenever its credit
    covers one. Credit is only kept while both have work: time that nobody else wanted is not charged for.
    """

    def __init__(self, patience_seconds: float = 0.0) -> None:
        """`patience_seconds`: credit that the other must have beyond one round, so that short bursts have no break."""
        self._patience_seconds = patience_seconds
        self._credit_seconds = 0.0
        self._last_seconds = 0.0

    def is_turn(self) -> bool:
        """Whether a round that both want is the other's."""
        return self._credit_seconds > 0 and self._credit_seconds >= self._patience_seconds + self._last_seconds

    def note(self, seconds: float, *, first: bool, contended: bool, share: float) -> None:
        """A round took so long.

        Args:
            first: it was that of whoever goes first.
            contended: the other one wanted it too.
            share: the other's, of the time while both have work; from 0 to 1, exclusive.
        """
        if not first:
            self._last_seconds = seconds
        if not contended:
            self._credit_seconds = 0.0
        elif first:
            self._credit_seconds += seconds * share / (1 - share)
        else:
            self._credit_seconds -= seconds


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


BULK_SHARE = 0.1
"""Of the engine's time, for bulk work while other work never ends."""

INITIAL_ROWS = 8
INITIAL_POSITIONS = 128

HEAVY_PART = 8.0
"""A call for heavy requests may take this many times as long as one for bulk work: somebody waits for them. So may one
for bulk work that is alone."""

HEAVY_PATIENCE = 4
"""Heavy requests take their share once it comes to this many calls: small requests of others are not interrupted."""

MIN_FREE_PART = 4
"""Bulk requests join when 1/4 of their rows is free: encoding several together costs less than one by one."""

MIN_NEWCOMERS_PART = 8
"""Other requests join at once if they are at least 1/8 of those that run. Otherwise they wait to fill a batch:
encoding four together takes 2.4 times as long as encoding one."""

MAX_STEPS_TO_FILL = 4
"""Steps that they wait to fill a batch, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What may run at once.

    Attributes:
        max_rows: live hypotheses that are stepped together.
        max_source_positions: running requests x the widest padded source, of each priority. A single request always
            fits.
        bulk_seconds: how long a call into the model for bulk work should take; None: as long as it takes, and those for
            heavy requests likewise.
    """

    max_rows: int
    max_source_positions: int
    bulk_seconds: float | None = None

    def call_seconds(self, priority: Priority) -> float:
        """How long a call into the model for that priority should take."""
        if self.bulk_seconds is None or priority is Priority.INTERACTIVE:
            return math.inf
        return self.bulk_seconds * (HEAVY_PART if priority is Priority.HEAVY else 1.0)


class _CallLimits:
    """How much a call into the model may hold, so that it takes no longer than this."""

    def __init__(self, seconds: float) -> None:
        self.rows = BatchBudget(seconds, INITIAL_ROWS)
        self.positions = BatchBudget(seconds, INITIAL_POSITIONS)


class _LimitedQueue:
    """A priority's queue, and what limits its calls; None: the budget of rows is the only limit."""

    def __init__(self, call_seconds: float) -> None:
        self.queue = PriorityQueue()
        self.limits = _CallLimits(call_seconds) if call_seconds < math.inf else None
        # Rounds for which its requests have waited to fill a batch.
        self.num_waited = 0

    def waits_to_fill_a_batch(self) -> bool:
        """Whether waiting requests do so for one more step, so that more are encoded and join at once."""
        few = 0 < self.queue.num_waiting * MIN_NEWCOMERS_PART < self.queue.num_running
        waits = few and self.num_waited < MAX_STEPS_TO_FILL
        self.num_waited = self.num_waited + 1 if waits else 0
        return waits


class Scheduler:
    """A queue per priority, and what decides between them.

    Attributes:
        bulk: what bulk requests may have now: the budget's rows, or what those of other models leave of them.
    """

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.bulk = BulkRoom(budget.max_rows, is_alone=False)
        self._limited = {priority: _LimitedQueue(budget.call_seconds(priority)) for priority in Priority}
        self._queues = {priority: one.queue for priority, one in self._limited.items()}
        seconds = budget.call_seconds(Priority.HEAVY)
        self._alone_limits = _CallLimits(seconds) if seconds < math.inf else None
        self._bulk_share = FairShare()
        self._heavy_share = FairShare(HEAVY_PATIENCE * seconds if seconds < math.inf else 0.0)
        self._deadlines = TimerQueue(self._has)

    def num_waiting(self, priority: Priority) -> int:
        return self._queues[priority].num_waiting

    def num_running(self, priority: Priority) -> int:
        return self._queues[priority].num_running

    @property
    def has_work(self) -> bool:
        return any(self._queues.values())

    def add(self, request: EngineRequest) -> None:
        """Puts a request at the end of its client's. Its key must be new, its rows no more than the budget has."""
        assert request.max_rows <= self.budget.max_rows, "a request that can never run was accepted"
        assert not self._has(request.key)
        self._queues[request.priority].add(request)
        if request.deadline is not None:
            num_requests = sum([queue.num_waiting + queue.num_running for queue in self._queues.values()])
            self._deadlines.add(request.deadline, request.key, num_requests)

    def next_priority(self) -> Priority:
        """Whose round the next one is."""
        interactive, heavy, bulk = map(bool, self._queues.values())
        if bulk and (not (interactive or heavy) or self._bulk_share.is_turn()):
            return Priority.BULK
        if heavy and (not interactive or self._heavy_share.is_turn()):
            return Priority.HEAVY
        return Priority.INTERACTIVE

    def admit(self, priority: Priority) -> list[EngineRequest]:
        """Moves the requests of a priority that may join now to running, and returns them."""
        limited, budget = self._limited[priority], self.budget
        max_rows, max_joining = self.bulk.max_rows if priority is Priority.BULK else budget.max_rows, math.inf
        if (limits := self._limits(priority)) is not None:
            max_rows, max_joining = min(max_rows, limits.rows.units), limits.positions.units
        if priority is Priority.BULK:
            if limited.queue.num_running and max_rows - limited.queue.reserved_rows < max_rows / MIN_FREE_PART:
                return []
        elif limited.waits_to_fill_a_batch():
            return []
        return limited.queue.admit(max_rows, budget.max_source_positions, max_joining)

    def settled_until(self) -> float:
        """The time before which rounds go on alike: interactive requests run, nobody waits, and no deadline passes.

        Until then, unless a request comes or is cancelled, nothing here needs to be called but `remove`. Between two
        steps each call costs several times what it costs in a loop of its own: the model's weights have evicted it from
        the caches.
        """
        interactive, *others = self._queues.values()
        if interactive.num_waiting or any(others):
            return -math.inf
        return self._deadlines.next_time

    def note_round(self, priority: Priority, seconds: float) -> None:
        """A priority's round took so long; called before what ended in it is removed."""
        interactive, heavy, bulk = self._queues.values()
        is_bulk, others = priority is Priority.BULK, bool(interactive or heavy)
        self._bulk_share.note(seconds, first=not is_bulk, contended=bool(bulk) and others, share=BULK_SHARE)
        if not is_bulk:
            contended, share = bool(heavy and interactive), 0.5
            if contended:
                share = heavy.num_clients / (heavy.num_clients + interactive.num_clients)
            first = priority is Priority.INTERACTIVE
            self._heavy_share.note(seconds, first=first, contended=contended, share=share)

    def note_step(self, priority: Priority, seconds: float, num_rows: int) -> None:
        """A step of so many rows took so long."""
        if (limits := self._limits(priority)) is not None:
            limits.rows.note(seconds, num_rows)

    def note_encoding(self, priority: Priority, seconds: float, num_positions: int) -> None:
        """Encoding so many positions, padding included, took so long."""
        if (limits := self._limits(priority)) is not None:
            limits.positions.note(seconds, num_positions)

    def expired(self, now: float) -> list[int]:
        """The keys, waiting and running, whose deadline has passed; each is told once."""
        return self._deadlines.due(now)

    def missed(self, now: float) -> list[int]:
        """The keys of those that wait and can't be answered before their deadlines any more; each is told once."""
        return [key for queue in self._queues.values() for key in queue.waiting.missed(now)]

    def remove(self, key: int) -> EngineRequest | None:
        """Takes a request out, whether it ended, its client went or its deadline passed. None: not here."""
        for queue in self._queues.values():
            if (request := queue.remove(key)) is not None:
                return request
        return None

    def _limits(self, priority: Priority) -> _CallLimits | None:
        """Of a call for that priority, as things are."""
        is_alone = priority is Priority.BULK and self.bulk.is_alone
        return self._alone_limits if is_alone else self._limited[priority].limits

    def _has(self, key: int) -> bool:
        return any(key in queue for queue in self._queues.values())
