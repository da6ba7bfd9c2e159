"""Which worker gets which request, and when: the server's side of scheduling. Pure: no clock.

Clients take turns in a queue per priority (`FairQueue`), by deficit round robin on expected rows x steps (Shreedhar and
Varghese 1995). A client at its turn is served as long as its credit covers its oldest request; otherwise it earns a
quantum for its next turn. So clients that always have requests waiting get the same work done, however many requests
each sends at once. A client with few requests waits for at most one turn of each other client.

All models and versions of a server share one budget of rows (`SharedRows`). The time until a new request has rows is
estimated from recent steps (`ThroughputEstimate`) and from the requests that workers have (`ExpectedEnds`).
"""

import itertools
import math
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from attendant.server.engine.messages import EngineRequest, Priority, StepStats
from attendant.server.engine.scheduler import MovingAverage, TimerQueue


class Ahead(NamedTuple):
    """The requests that will be taken before a request that arrives now.

    Attributes:
        work: their expected rows x steps.
        num_requests: their approximate number.
        num_own: waiting requests of its own client.
    """

    work: float
    num_requests: float
    num_own: int


@dataclass(slots=True)
class _Client:
    """A client's waiting requests, in order of arrival, and their total work."""

    credit: float = 0.0
    requests: OrderedDict[int, EngineRequest] = field(default_factory=OrderedDict)
    work: float = 0.0

    @property
    def oldest(self) -> EngineRequest:
        return next(iter(self.requests.values()))


class FairQueue:
    """Waiting requests, by client, and their total work."""

    def __init__(self) -> None:
        # The ring: the client whose turn it is comes first.
        self._clients: OrderedDict[str, _Client] = OrderedDict()
        self._client_of: dict[int, str] = {}
        self._starts = TimerQueue(self._client_of.__contains__)
        self.work = 0.0

    def __len__(self) -> int:
        return len(self._client_of)

    def add(self, request: EngineRequest) -> None:
        """Appends a request to those of its client, and a new client to the ring."""
        client = self._clients.get(request.client)
        is_new = client is None
        if client is None:
            client = self._clients[request.client] = _Client()
        client.requests[request.key] = request
        client.work += request.work
        self.work += request.work
        self._client_of[request.key] = request.client
        if is_new:
            client.credit = self._quantum()
        if request.start_by is not None:
            self._starts.add(request.start_by, request.key, len(self))

    def put_back(self, request: EngineRequest) -> None:
        """Puts a request that was taken but not decoded before all others; its client does not pay for it."""
        self.add(request)
        client = self._clients[request.client]
        client.requests.move_to_end(request.key, last=False)
        client.credit += request.work
        self._clients.move_to_end(request.client, last=False)

    def remove(self, key: int) -> EngineRequest | None:
        """Removes a request whose caller has gone; returns None if it is not here."""
        name = self._client_of.pop(key, None)
        if name is None:
            return None
        client = self._clients[name]
        request = client.requests.pop(key)
        client.work -= request.work
        self.work -= request.work
        if not client.requests:
            del self._clients[name]
        if not self._clients:
            self.work = 0.0  # without rounding errors
        return request

    def first(self) -> EngineRequest | None:
        """Returns the request whose turn it is, or None if none waits."""
        if not self._clients:
            return None
        quantum = self._quantum()
        while True:
            name, client = next(iter(self._clients.items()))
            if client.credit >= client.oldest.work:
                return client.oldest
            client.credit += quantum
            self._clients.move_to_end(name)

    def take(self, request: EngineRequest) -> None:
        """Removes a request that will be decoded: its client pays for it."""
        self._clients[request.client].credit -= request.work
        self.remove(request.key)

    def missed(self, now: float) -> list[int]:
        """Returns the keys, each once, of requests that can't be answered before their deadlines any more."""
        return self._starts.due(now)

    def num_of(self, client: str) -> int:
        mine = self._clients.get(client)
        return 0 if mine is None else len(mine.requests)

    def ahead(self, client: str, work: float) -> Ahead:
        """Returns the work that is taken before a request of this client that arrives now.

        That is all of the client's waiting requests, and of every other client as much work, or all that it has.
        """
        mine = self._clients.get(client)
        work_ahead, num_own = 0.0 if mine is None else mine.work, self.num_of(client)
        turn, num_ahead = work_ahead + work, float(num_own)
        for other in self._clients.values():
            if other is not mine and other.work:
                part = min(1.0, turn / other.work)
                work_ahead += part * other.work
                num_ahead += part * len(other.requests)
        return Ahead(work_ahead, num_ahead, num_own)

    def _quantum(self) -> float:
        """Returns the credit that a turn earns: the mean work of those waiting, so that one turn pays for most."""
        return self.work / len(self)


RESERVED = (Priority.INTERACTIVE, Priority.HEAVY)
"""Priorities whose requests are sent to a worker only once the server has rows for them."""

ALONE_SECONDS = 1.0  # Bulk work counts as alone if no other request arrived for this long and none is unanswered.


class SharedRows:
    """One budget of rows, per priority, for all models and versions in a server. Pure.

    A version's interactive and heavy requests go to its workers only when the server has rows for them. Freed rows go
    to the waiting version that holds fewest (max-min fairness): one version alone may have all of them; several that
    want more than there are converge to equal shares. Rows count until their request has ended.

    The rows for bulk requests are divided evenly among the versions that have any. While bulk work is alone, its calls
    into the model may take longer. The server decides that, because a worker does not see the requests of others, and
    every worker slows down all of them.
    """

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._budgets = {priority: _Budget(max_rows) for priority in RESERVED}
        self._with_bulk: dict[Callable[[int, bool], None], None] = {}
        self._bulk_is_alone = False
        self._last_request = -math.inf

    def share(self, priority: Priority, retry: Callable[[], None]) -> "RowShare":
        """Returns a version's share; `retry` is called when rows may be free for it."""
        return RowShare(self._budgets[priority], retry)

    def divide_bulk(self, limit: Callable[[int, bool], None], *, has_bulk: bool) -> None:
        """Registers that the workers of a version have bulk requests from now on, or have none any more.

        Args:
            limit: called, while they have some, with the number of such versions and whether bulk work is alone.
        """
        if has_bulk:
            self._with_bulk[limit] = None
        else:
            self._with_bulk.pop(limit, None)
        self._limit_bulk()

    def note_request(self, now: float) -> None:
        """Ends the time of bulk work alone, because another request has arrived."""
        self._last_request = now
        if self._bulk_is_alone:
            self._bulk_is_alone = False
            self._limit_bulk()

    def tick(self, now: float) -> None:
        is_idle = all(budget.free == self._max_rows and not budget.waiting for budget in self._budgets.values())
        if not self._bulk_is_alone and is_idle and now - self._last_request >= ALONE_SECONDS:
            self._bulk_is_alone = True
            self._limit_bulk()

    def _limit_bulk(self) -> None:
        for limit in self._with_bulk:
            limit(len(self._with_bulk), self._bulk_is_alone)


class _Budget:
    """The rows of one priority: the free ones, and the shares that were refused rows."""

    def __init__(self, free: int) -> None:
        self.free = free
        self.waiting: set[RowShare] = set()
        self.arrivals = itertools.count()


class RowShare:
    """The rows that one version holds: those of requests that were sent to workers."""

    def __init__(self, budget: _Budget, retry: Callable[[], None]) -> None:
        self._budget = budget
        self._retry = retry
        # Among shares that hold equally many rows, the one that has waited longest goes first.
        self._arrival = math.inf
        self._held = 0

    @property
    def _turn(self) -> tuple[int, float]:
        return self._held, self._arrival

    def take(self, num_rows: int) -> bool:
        """Takes rows; returns False if they are not free, or if another waiting version goes first."""
        budget = self._budget
        if num_rows <= budget.free and (
            not budget.waiting or self._turn <= min(other._turn for other in budget.waiting)
        ):
            budget.waiting.discard(self)
            self._arrival = math.inf
            budget.free -= num_rows
            self._held += num_rows
            return True
        if self not in budget.waiting:
            budget.waiting.add(self)
            self._arrival = min(self._arrival, next(budget.arrivals))
        return False

    def give_back(self, num_rows: int) -> None:
        """Returns rows, and lets this version and those that wait for rows retry, each in its turn."""
        budget = self._budget
        budget.free += num_rows
        self._held -= num_rows
        self._retry()
        while budget.waiting:
            first, free = min(budget.waiting, key=lambda share: share._turn), budget.free
            budget.waiting.remove(first)
            first._retry()
            if first not in budget.waiting:
                first._arrival = math.inf
            elif budget.free == free:  # its request does not fit yet, and no other goes first
                return


MEMORY_SECONDS = 5.0  # Seconds of work after which a measurement has faded.


class ThroughputEstimate:
    """Seconds of a step and of an encoding, over the last seconds of work.

    A step takes a fixed time and a time per row: the line through recent steps. So an engine that has only stepped a
    few rows at a time does not count as slow. Idle time does not count.

    Attributes:
        peak_rows: rows of the largest recent step.
    """

    def __init__(self) -> None:
        # Sums over recent steps.
        self._steps = self._rows = self._rows_squared = self._seconds = self._row_seconds = 0.0
        self._encode_seconds = self._encodings = self._encoded = 0.0
        self.peak_rows = 1.0

    def note(self, stats: StepStats) -> None:
        """Learns from a round of the engine. Bulk rounds do not count, because their calls have another size."""
        if stats.priority is Priority.BULK:
            return
        phases, rows = stats.phase_seconds, stats.num_rows
        seconds, encode = sum(phases.values()), phases.get("encode", 0.0)
        kept = max(0.0, 1.0 - seconds / MEMORY_SECONDS)
        self._encode_seconds = self._encode_seconds * kept + encode
        self._encodings = self._encodings * kept + (stats.num_encoded > 0)
        self._encoded = self._encoded * kept + stats.num_encoded
        step = seconds - encode
        self._steps = self._steps * kept + (rows > 0)
        self._rows = self._rows * kept + rows
        self._rows_squared = self._rows_squared * kept + rows * rows
        self._seconds = self._seconds * kept + step
        self._row_seconds = self._row_seconds * kept + step * rows
        self.peak_rows = max(1.0, rows, self.peak_rows * kept)

    def step_seconds(self, num_rows: float) -> float:
        """Returns the seconds of a step of `num_rows` rows; 0 before the first step."""
        if not self._rows:
            return 0.0
        mean_rows, mean_seconds = self._rows / self._steps, self._seconds / self._steps
        variance = self._rows_squared / self._steps - mean_rows**2
        if variance > 0.01 * mean_rows**2:
            slope = (self._row_seconds / self._steps - mean_rows * mean_seconds) / variance
        else:  # all of one size: no line
            slope = mean_seconds / mean_rows
        slope = min(max(slope, 0.0), mean_seconds / mean_rows)
        return max(mean_seconds + slope * (num_rows - mean_rows), 0.0)

    def seconds(self, work: float, num_requests: float, max_rows: int) -> float:
        """Returns the seconds that requests take, with about as many rows in a step as recently.

        Args:
            work: rows x steps of the requests.
            max_rows: limit of the rows in a step.
        """
        if not work and not num_requests:  # most requests find an empty queue
            return 0.0
        rows = min(max_rows, 2 * self.peak_rows)
        encoding = num_requests * self._encode_seconds / self._encoded if self._encoded else 0.0
        return work * self.step_seconds(rows) / rows + encoding

    @property
    def encode_seconds(self) -> float:
        """Seconds of an encoding of any number of requests; 0 before the first one."""
        return self._encode_seconds / self._encodings if self._encodings else 0.0


class ExpectedEnds:
    """The requests of one priority that workers have, in the order in which they are expected to end."""

    def __init__(self) -> None:
        self._ends: list[tuple[float, int, int]] = []  # Sorted; each with the request's key and rows.
        self._sent: dict[int, tuple[float, float, EngineRequest]] = {}  # By key: the end, the time of sending.

    def add(self, request: EngineRequest, now: float, step_seconds: float) -> None:
        """Adds a request that was sent now, when a step takes `step_seconds`."""
        end = now + request.expected_steps * step_seconds
        self._sent[request.key] = end, now, request
        insort(self._ends, (end, request.key, request.max_rows))

    def remove(self, key: int) -> None:
        """Removes a request that no worker has any more, if it is here."""
        if (sent := self._sent.pop(key, None)) is not None:
            del self._ends[bisect_left(self._ends, (sent[0], key, 0))]

    def freeing(self, num_rows: int, num_ahead: float, num_held: int) -> tuple[float, float] | None:
        """Returns the time of sending and the expected steps of the request whose end frees a new request's rows.

        That is the last one if even all ends do not free enough; None if there are no requests.

        Args:
            num_rows: rows of the new request that are not free now.
            num_ahead: number of requests that wait before it. Each counts as the mean rows of a request here.
            num_held: rows of all requests here.
        """
        if not self._ends:
            return None
        missing = num_rows + num_ahead * num_held / len(self._ends)
        for next_end in self._ends:
            missing -= next_end[2]
            if missing <= 0:
                break
        _, sent, request = self._sent[next_end[1]]
        return sent, request.expected_steps


LONG_FACTOR: Final = 1.5  # A request is long if it is expected to take more than this many times the mean steps.
LONG_ROW_WEIGHT: Final = 3  # Weight of a long request's row when a worker is chosen for a short request.
MEAN_WEIGHT: Final = 0.02  # Weight of a request in the mean of expected steps.
BULK_AHEAD: Final = 2
"""A worker gets bulk requests of up to this many times its rows, so that it never waits for the server."""


@dataclass(slots=True)
class _Load:
    """The rows of a priority's requests that a worker has; those of long requests also by key."""

    rows: int = 0
    long: dict[int, int] = field(default_factory=dict)

    @property
    def weight(self) -> int:
        """The load that counts when a worker is chosen for a short request."""
        return self.rows + (LONG_ROW_WEIGHT - 1) * sum(self.long.values())


class Dispatcher:
    """One queue per priority for all workers, and the choice of a worker for each request. Pure.

    As soon as workers have room, an interactive or heavy request goes to the one with the fewest rows of its priority,
    because several small batches on several cores answer sooner than a large one on one. Bulk requests are sent before
    there is room for them. While no worker is open, all requests wait.

    A step takes longer the more rows take part, and newcomers hold it up while they are encoded. Long requests, which
    are answered last, suffer most from both. So short requests keep away from them: when a worker is chosen for a short
    request, the rows of long ones count several times.
    """

    def __init__(
        self,
        num_workers: int,
        max_rows: int,
        send: Callable[[int, EngineRequest], None],
        shared: SharedRows | None = None,
        on_bulk: Callable[[int, bool], None] = lambda num_dispatchers, is_alone: None,
    ) -> None:
        """Makes a dispatcher without an open worker.

        Args:
            max_rows: of each priority, of each worker.
            send: called with a worker's number and a request that it gets.
            shared: the rows of all dispatchers in the server. If None, this one is alone.
            on_bulk: see SharedRows.divide_bulk.
        """
        self._send = send
        self._shared = shared or SharedRows(num_workers * max_rows)
        self._shares = {priority: self._shared.share(priority, self._dispatch) for priority in RESERVED}
        self._on_bulk, self._has_bulk = on_bulk, False
        self._num_workers, self._max_rows = num_workers, max_rows
        self._open: list[int] = []
        self._waiting = {priority: FairQueue() for priority in Priority}
        self._loads = {priority: [_Load() for _ in range(num_workers)] for priority in Priority}
        self._mean_steps = MovingAverage(MEAN_WEIGHT, max_rise=2.0)

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    def num_waiting(self, priority: Priority) -> int:
        """Returns the number of requests that no worker has room for."""
        return len(self._waiting[priority])

    def num_rows(self, worker: int) -> int:
        return sum(loads[worker].rows for loads in self._loads.values())

    def num_held(self, priority: Priority) -> int:
        """Returns the rows of the requests of a priority that workers have."""
        return sum([load.rows for load in self._loads[priority]])

    def ahead(self, priority: Priority, client: str, work: float) -> Ahead:
        """Returns the work before a new request of `work` rows x steps; `num_own` counts light and heavy requests."""
        ahead = self._waiting[priority].ahead(client, work)
        return Ahead(ahead.work, ahead.num_requests, sum([self._waiting[kind].num_of(client) for kind in RESERVED]))

    def missed(self, now: float) -> list[EngineRequest]:
        """Removes and returns waiting requests that can't be answered before their deadlines any more."""
        return [
            request
            for queue in self._waiting.values()
            for key in queue.missed(now)
            if (request := queue.remove(key)) is not None
        ]

    def tick(self, now: float) -> None:
        self._shared.tick(now)

    def open(self, worker: int) -> None:
        self._open.append(worker)
        self._dispatch()

    def close(self, worker: int, unfinished: Iterable[EngineRequest] = ()) -> None:
        """Takes a worker's requests from it, and gives it no more; `unfinished` ones wait again, before all others."""
        if worker in self._open:
            self._open.remove(worker)
        for request in sorted(unfinished, key=lambda request: request.key, reverse=True):
            self._waiting[request.priority].put_back(request)
        freed = {priority: loads[worker].rows for priority, loads in self._loads.items()}
        for loads in self._loads.values():
            loads[worker] = _Load()
        self._free(freed)
        self._dispatch()

    def add(self, request: EngineRequest) -> None:
        """Adds a request, and sends it if a worker has room."""
        queue = self._waiting[request.priority]
        if request.priority is not Priority.BULK:
            self._shared.note_request(request.submitted)
        # In an empty queue it would have its turn at once, and the queue would forget its client.
        if not queue and self._give(request):
            self._note_bulk()
        else:
            queue.add(request)
            self._dispatch()

    def cancel(self, key: int) -> bool:
        """Removes a request whose caller has gone; returns False if it does not wait here."""
        return any(queue.remove(key) is not None for queue in self._waiting.values())

    def ended(self, worker: int, requests: Iterable[EngineRequest]) -> None:
        """Frees the rows of requests that have ended, and sends others in their place."""
        freed = dict.fromkeys(Priority, 0)
        for request in requests:
            load = self._loads[request.priority][worker]
            load.rows -= request.max_rows
            load.long.pop(request.key, None)
            freed[request.priority] += request.max_rows
        self._free(freed)

    def clear(self) -> None:
        """Forgets all requests, because the workers have been let go."""
        self._waiting = {priority: FairQueue() for priority in Priority}
        for worker in range(self._num_workers):
            self.close(worker)

    def _free(self, rows: dict[Priority, int]) -> None:
        for priority, share in self._shares.items():
            if rows[priority]:
                share.give_back(rows[priority])
        if rows[Priority.BULK]:
            self._dispatch()

    def _dispatch(self) -> None:
        """Sends the requests that there is room for."""
        for queue in self._waiting.values():
            # The request at its turn waits until it fits, before all smaller ones, so that it does not starve.
            while (request := queue.first()) is not None and self._give(request):
                queue.take(request)
        self._note_bulk()

    def _give(self, request: EngineRequest) -> bool:
        """Sends a request to the best worker with room; returns False if there is none, or the server has no rows."""
        loads, num_rows, is_bulk = self._loads[request.priority], request.max_rows, request.priority is Priority.BULK
        limit = self._max_rows * (BULK_AHEAD if is_bulk else 1)
        with_room = [worker for worker in self._open if loads[worker].rows + num_rows <= limit]
        if not with_room or not (is_bulk or self._shares[request.priority].take(num_rows)):
            return False
        expected = request.expected_steps
        is_long = not is_bulk and expected > LONG_FACTOR * self._mean_steps.add(expected)
        if is_long or is_bulk:
            worker = min(with_room, key=lambda number: loads[number].rows)
        else:
            worker = min(with_room, key=lambda number: loads[number].weight)
        if is_long:
            loads[worker].long[request.key] = num_rows
        loads[worker].rows += num_rows
        self._send(worker, request)
        return True

    def _note_bulk(self) -> None:
        has_bulk = any(load.rows for load in self._loads[Priority.BULK])
        if has_bulk != self._has_bulk:
            self._has_bulk = has_bulk
            self._shared.divide_bulk(self._on_bulk, has_bulk=has_bulk)
