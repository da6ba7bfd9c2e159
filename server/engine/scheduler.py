"""Which requests of an engine wait and which run. Pure: no tensors, no clock.

Interactive, heavy and bulk requests have a queue each, with the whole budget, and are stepped apart: a round of the
engine belongs to one priority. So an interactive request is admitted at the next step however much other work there is,
and its steps take no longer because of it. While interactive work runs, the other rows pause with their state kept.
Heavy requests get the share of time of their clients among all clients, and bulk work a tenth. A round of theirs is one
call into the model, limited in time. There requests are admitted in order of arrival, since the server has already
ordered them by client (`dispatch.py`). Among the first WINDOW of them, those go first whose padded width is nearest to
the oldest one's, because a batch is padded to its widest source.
"""

import heapq
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from attendant.runtime.stepper import padded_width
from attendant.server.engine.messages import BulkRoom, EngineRequest, Priority


class MovingAverage:
    """An exponential moving average.

    Attributes:
        value: 0 before the first value.
    """

    def __init__(self, weight: float, value: float | None = None, max_rise: float = math.inf) -> None:
        """Starts an average.

        Args:
            weight: of each new value; 0 to 1.
            max_rise: a value counts as at most this many times the average: more is an outlier, or comes again.
        """
        self.value = value or 0.0
        self._is_empty = value is None
        self._weight = weight
        self._max_rise = max_rise

    def add(self, value: float, weight: float | None = None) -> float:
        """Adds a value, with `weight` instead of the usual one if it is not None; returns the new average."""
        if self._is_empty:
            self.value, self._is_empty = value, False
        else:
            self.value += (weight or self._weight) * (min(value, self._max_rise * self.value) - self.value)
        return self.value


MAX_OLD = 64


class TimerQueue:
    """A heap of keys by time. Keys that ended before their times are removed now and then."""

    def __init__(self, is_present: Callable[[int], bool]) -> None:
        """`is_present`: returns whether a key still matters."""
        self._is_present = is_present
        self._heap: list[tuple[float, int]] = []

    def add(self, time: float, key: int, num_present: int) -> None:
        """Adds a key; `num_present` is the number of keys that still matter."""
        heapq.heappush(self._heap, (time, key))
        # Keys that ended long before their times must not pile up.
        if len(self._heap) > 2 * num_present + MAX_OLD:
            self._heap = [entry for entry in self._heap if self._is_present(entry[1])]
            heapq.heapify(self._heap)

    @property
    def next_time(self) -> float:
        """Nothing is due before this time."""
        return self._heap[0][0] if self._heap else math.inf

    def due(self, now: float) -> list[int]:
        """Returns the keys whose time has come, each once."""
        keys: list[int] = []
        while self._heap and self._heap[0][0] <= now:
            _, key = heapq.heappop(self._heap)
            if self._is_present(key):
                keys.append(key)
        return keys


BULK_SHARE = 0.1  # Bulk work's share of the engine's time while other work never ends.
INITIAL_ROWS = 8
INITIAL_POSITIONS = 128

HEAVY_PART = 8.0
"""A call for heavy requests may take this many times as long as one for bulk work, because callers wait for heavy
requests. The same limit applies to bulk work while the server has no other requests."""

HEAVY_PATIENCE = 4
"""Heavy requests use their share once it has grown to this many calls, so that short bursts are not interrupted."""

MIN_FREE_PART = 4
"""Bulk requests join when 1/4 of their rows is free: encoding several together costs less than one by one."""

MAX_STEPS_TO_FILL = 24
"""Largest number of steps that requests wait for others to join with.

They join when at least as many wait as run, or after these steps. A join costs more than its encoding: it reads the
encoder's weights, which evict the step's from the caches, and the next steps have new shapes. Besides, a row's share of
a step hardly falls above five rows, so long requests gain when newcomers wait. `python -m benchmarks --only open-loop`
measures it."""

MAX_STEPS_TO_STREAM = 4  # The same if one of them is streamed: its caller waits for the first token.
WINDOW = 64  # Number of waiting requests that are searched for some of similar length.
MAX_OVERTAKEN = 64  # Fairness bound: at most this many later requests are admitted before a waiting one.


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of the work that may run at once.

    Attributes:
        max_rows: live hypotheses that are stepped together.
        max_source_positions: running requests x the widest padded source, of each priority. A single request always
            fits.
        bulk_seconds: target duration of a call into the model for bulk work. If None, calls for bulk and heavy requests
            have no limit of time.
    """

    max_rows: int
    max_source_positions: int
    bulk_seconds: float | None = None

    @property
    def heavy_seconds(self) -> float | None:
        """Target duration of a call for heavy requests, or for bulk work that is alone."""
        return None if self.bulk_seconds is None else HEAVY_PART * self.bulk_seconds


class FairShare:
    """Fair sharing of time by deficit: one party goes first, and the other gets a share, so that it never starves.

    Each round of the first party earns the other a part of that round's duration. The other has a round whenever its
    credit covers one. Credit is only kept while both have work: uncontended time is not charged.
    """

    def __init__(self, patience_seconds: float = 0.0) -> None:
        """`patience_seconds`: credit that the other needs beyond one round, so that short bursts have no break."""
        self._patience_seconds = patience_seconds
        self._credit_seconds = 0.0
        self._last_seconds = 0.0

    def is_turn(self) -> bool:
        """Returns whether a contended round belongs to the other party."""
        return self._credit_seconds > 0 and self._credit_seconds >= self._patience_seconds + self._last_seconds

    def note(self, seconds: float, *, first: bool, contended: bool, share: float) -> None:
        """Charges a round.

        Args:
            first: whether it was the first party's.
            contended: whether the other party had work, too.
            share: the other's share of the time while both have work; from 0 to 1, exclusive.
        """
        if not first:
            self._last_seconds = seconds
        if not contended:
            self._credit_seconds = 0.0
        elif first:
            self._credit_seconds += seconds * share / (1 - share)
        else:
            self._credit_seconds -= seconds


CALL_WEIGHT = 0.2
"""Weight of a call in the mean cost of a unit: a call that the operating system interrupted does not count for much."""

MAX_RISE = 2.0

MAX_GROWTH = 2.0
"""The budget is at most this many times the last measured call: larger calls are approached step by step."""


class BatchBudget:
    """Units of work (rows of a step, positions of an encoding) that a call into the model may have.

    A call can't be interrupted. So that interactive requests do not wait long for it, a call for other work is made no
    larger than fits into a given time: that time, divided by the cost of a unit in recent calls. Fixed costs make units
    of small calls look expensive, so the size grows step by step to where a call takes just the given time.
    """

    def __init__(self, seconds: float, initial: int) -> None:
        self._seconds = seconds
        self._limit = float(initial)
        self._unit_seconds = MovingAverage(CALL_WEIGHT, max_rise=MAX_RISE)

    @property
    def units(self) -> int:
        """At least 1, so that work always goes on."""
        return max(1, int(self._limit))

    def note(self, seconds: float, units: int) -> None:
        """Learns from a call.

        Calls much smaller than the budget are ignored unless they took too long: they differ from large ones. So
        are calls that are shorter than the clock's resolution.
        """
        if seconds > 0 and (units >= self._limit / 2 or seconds >= self._seconds):
            self._limit = min(self._seconds / self._unit_seconds.add(seconds / units), MAX_GROWTH * units)


class _CallLimits:
    """Sizes of calls into the model (rows of a step, positions of an encoding) that take a given time."""

    def __init__(self, seconds: float) -> None:
        self.rows = BatchBudget(seconds, INITIAL_ROWS)
        self.positions = BatchBudget(seconds, INITIAL_POSITIONS)


class PriorityQueue:
    """The requests of one priority: waiting in order of arrival, and running.

    Two budgets limit admission: rows (a request reserves its largest number of them) and padded source positions
    (requests x the widest padded source, which determines the memory of the encoder's results).

    Attributes:
        reserved_rows: rows of all running requests.
        num_waits: rounds in which its requests have waited to fill a batch.
        limits: of its calls; None if only the budgets limit them.
    """

    def __init__(self, call_seconds: float | None = None) -> None:
        # By key, each with the number of requests that had been taken before it if none overtook.
        self.waiting: OrderedDict[int, tuple[EngineRequest, int]] = OrderedDict()
        self.running: dict[int, EngineRequest] = {}
        self.reserved_rows = 0
        self.num_waits = 0
        self.limits = None if call_seconds is None else _CallLimits(call_seconds)
        self._num_taken = 0
        self._running_widths: Counter[int] = Counter()
        self._clients: Counter[str] = Counter()
        self._starts = TimerQueue(self.waiting.__contains__)

    @property
    def num_clients(self) -> int:
        return len(self._clients)

    def __contains__(self, key: int) -> bool:
        return key in self.waiting or key in self.running

    def __len__(self) -> int:
        return len(self.waiting) + len(self.running)

    def add(self, request: EngineRequest) -> None:
        self.waiting[request.key] = request, self._num_taken + len(self.waiting)
        self._clients[request.client] += 1
        if request.start_by is not None:
            self._starts.add(request.start_by, request.key, len(self.waiting))

    def remove(self, key: int) -> EngineRequest | None:
        """Removes a request, whether it waits or runs; returns None if it is not here."""
        if key in self.waiting:
            request, _ = self.waiting.pop(key)
        elif key in self.running:
            request = self.running.pop(key)
            self.reserved_rows -= request.max_rows
            _count_down(self._running_widths, width_of(request))
        else:
            return None
        _count_down(self._clients, request.client)
        return request

    def missed(self, now: float) -> list[int]:
        """Returns the keys, each once, of waiting requests that can't be answered before their deadlines any more."""
        return self._starts.due(now)

    def waits_to_fill_a_batch(self) -> bool:
        """Returns whether waiting requests wait one more step, so that more are encoded and join at once."""
        waits = 0 < len(self.waiting) < len(self.running) and self.num_waits < MAX_STEPS_TO_FILL
        if waits and self.num_waits >= MAX_STEPS_TO_STREAM:
            waits = not any(request.streams for request, _ in self.waiting.values())
        self.num_waits = self.num_waits + 1 if waits else 0
        return waits

    def admit(self, max_rows: int, max_positions: int, max_joining_positions: float = math.inf) -> list[EngineRequest]:
        """Moves requests from waiting to running, and returns them.

        Args:
            max_rows, max_positions: limits of all that run; a single request always fits.
            max_joining_positions: limit of those that join now, padded to their widest; at least one may join.
        """
        admitted: list[EngineRequest] = []
        if not self.waiting:
            return admitted
        joining_width = 0
        running_width = max(self._running_widths, default=0)
        for request in self._candidates(max_rows - self.reserved_rows):
            width = width_of(request)
            if self.running:
                if self.reserved_rows + request.max_rows > max_rows:
                    break
                if max(running_width, width) * (len(self.running) + 1) > max_positions:
                    break
            joining_width = max(joining_width, width)
            if admitted and joining_width * (len(admitted) + 1) > max_joining_positions:
                break
            running_width = max(running_width, width)
            del self.waiting[request.key]
            self._num_taken += 1
            self.running[request.key] = request
            self._running_widths[width] += 1
            self.reserved_rows += request.max_rows
            admitted.append(request)
        return admitted

    def _candidates(self, room: int) -> list[EngineRequest]:
        """Returns the requests that may be admitted now: the oldest, those passed too often, then the nearest width."""
        window = list(islice(self.waiting.values(), WINDOW if room > 0 else 1))
        (first, _), *others = window
        overdue = [request for request, place in others if self._num_taken - place >= MAX_OVERTAKEN]
        passable = [request for request, place in others if self._num_taken - place < MAX_OVERTAKEN]
        # Sorting is stable: of similar widths the one that arrived first goes first.
        passable.sort(key=lambda request: abs(width_of(request) - width_of(first)))
        return [first, *overdue, *passable]


class Scheduler:
    """A queue per priority, and the rules that decide between them."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        seconds = {Priority.HEAVY: budget.heavy_seconds, Priority.BULK: budget.bulk_seconds}
        self._queues = {priority: PriorityQueue(seconds.get(priority)) for priority in Priority}
        self._bulk_room = BulkRoom(budget.max_rows, is_alone=False)
        self._alone_limits = None if budget.heavy_seconds is None else _CallLimits(budget.heavy_seconds)
        self._bulk_share = FairShare()
        self._heavy_share = FairShare(HEAVY_PATIENCE * (budget.heavy_seconds or 0.0))
        self._deadlines = TimerQueue(self._has)

    def num_waiting(self, priority: Priority) -> int:
        return len(self._queues[priority].waiting)

    def num_running(self, priority: Priority) -> int:
        return len(self._queues[priority].running)

    @property
    def has_work(self) -> bool:
        return any(self._queues.values())

    def limit_bulk(self, room: BulkRoom) -> None:
        """Sets the rows of bulk requests from now on: the budget's, or those that other models leave of them."""
        self._bulk_room = room

    def add(self, request: EngineRequest) -> None:
        """Adds a waiting request. Its key must be new, its rows no more than the budget has."""
        assert request.max_rows <= self.budget.max_rows, "a request that can never run was accepted"
        assert not self._has(request.key)
        self._queues[request.priority].add(request)
        if request.deadline is not None:
            self._deadlines.add(request.deadline, request.key, sum(map(len, self._queues.values())))

    def next_priority(self) -> Priority:
        interactive, heavy, bulk = map(bool, self._queues.values())
        if bulk and (not (interactive or heavy) or self._bulk_share.is_turn()):
            return Priority.BULK
        if heavy and (not interactive or self._heavy_share.is_turn()):
            return Priority.HEAVY
        return Priority.INTERACTIVE

    def admit(self, priority: Priority) -> list[EngineRequest]:
        """Moves the requests of a priority that may join now to running, and returns them."""
        queue, budget = self._queues[priority], self.budget
        max_rows = self._bulk_room.max_rows if priority is Priority.BULK else budget.max_rows
        max_joining = math.inf
        if (limits := self._limits(priority)) is not None:
            max_rows, max_joining = min(max_rows, limits.rows.units), limits.positions.units
        if priority is Priority.BULK:
            if queue.running and max_rows - queue.reserved_rows < max_rows / MIN_FREE_PART:
                return []
        elif queue.waits_to_fill_a_batch():
            return []
        return queue.admit(max_rows, budget.max_source_positions, max_joining)

    def note_step(self, priority: Priority, seconds: float, num_rows: int) -> None:
        if (limits := self._limits(priority)) is not None:
            limits.rows.note(seconds, num_rows)

    def note_encoding(self, priority: Priority, seconds: float, num_positions: int) -> None:
        """Learns from an encoding of `num_positions` positions, padding included."""
        if (limits := self._limits(priority)) is not None:
            limits.positions.note(seconds, num_positions)

    def end_round(self, priority: Priority, seconds: float, ended: Iterable[int] = ()) -> float:
        """Charges a round to its priority, and removes the requests that ended in it.

        Returns:
            The time before which nothing changes unless requests come or go. Rounds that begin earlier need no
            scheduling: rows are stepped, and the finished ones leave. Interactive work that is alone runs for many
            rounds in this way. Between two steps each call costs several times as much as in a loop of its own, because
            the model's weights have evicted it from the caches.
        """
        interactive, heavy, bulk = self._queues.values()
        is_bulk, others = priority is Priority.BULK, bool(interactive or heavy)
        self._bulk_share.note(seconds, first=not is_bulk, contended=bool(bulk) and others, share=BULK_SHARE)
        if not is_bulk:
            contended, share = bool(heavy and interactive), 0.5
            if contended:
                share = heavy.num_clients / (heavy.num_clients + interactive.num_clients)
            first = priority is Priority.INTERACTIVE
            self._heavy_share.note(seconds, first=first, contended=contended, share=share)
        for key in ended:
            self.remove(key)
        return -math.inf if interactive.waiting or heavy or bulk else self._deadlines.next_time

    def expired(self, now: float) -> list[int]:
        """Returns the keys, each once, of waiting and running requests whose deadline has passed."""
        return self._deadlines.due(now)

    def missed(self, now: float) -> list[int]:
        """Returns the keys, each once, of waiting requests that can't be answered before their deadlines any more."""
        return [key for queue in self._queues.values() for key in queue.missed(now)]

    def remove(self, key: int) -> EngineRequest | None:
        """Removes a request that ended, or whose caller has gone; returns None if it is not here."""
        for queue in self._queues.values():
            if (request := queue.remove(key)) is not None:
                return request
        return None

    def _limits(self, priority: Priority) -> _CallLimits | None:
        is_alone = priority is Priority.BULK and self._bulk_room.is_alone
        return self._alone_limits if is_alone else self._queues[priority].limits

    def _has(self, key: int) -> bool:
        return any(key in queue for queue in self._queues.values())


def width_of(request: EngineRequest) -> int:
    return padded_width(len(request.source_ids))


def _count_down(counter: Counter[Any], key: int | str) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
