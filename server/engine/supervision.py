"""Supervision of worker processes: one slot per worker, its silences, restarts after crashes, and suspected requests.

Requests that a worker was computing when it died are suspects. Each is decoded again, alone, so that it can harm no
other. Decoding has no side effects, and its result does not depend on the neighbours, so a second time gives the same
answer. A request that ends a worker alone as well is poisoned. Finding it takes two deaths, however many suspects there
were.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from functools import partial

from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.errors import UserError
from attendant.server.engine.messages import BulkRoom, EngineRequest, Link, Outcomes, Priority, Ready, Report
from attendant.server.engine.processes import WorkerProcess
from attendant.server.engine.scheduler import MAX_RISE, MovingAverage
from attendant.server.polling import until

RESTARTS_WINDOW_SECONDS = 600.0
FIRST_DELAY_SECONDS = 0.5
MAX_DELAY_SECONDS = 30.0

ENDING_SECONDS = 1.0
"""Time that a worker which hung up gets to end, so that the log can say how it ended."""

MAX_POISONED = 1024
"""Number of poisoned requests that are remembered."""

NO_REPORT = Report([], [], [], (0,) * len(Priority), 0)


class Restarts:
    """Delays between restarts: the first within a window follows at once, each further one after twice the time."""

    def __init__(self, max_restarts: int) -> None:
        """`max_restarts`: within RESTARTS_WINDOW_SECONDS."""
        self._max = max_restarts
        self._times: deque[float] = deque()

    def delay(self, now: float) -> float | None:
        """Returns the seconds until a worker that died is restarted; None if too many have died."""
        while self._times and self._times[0] <= now - RESTARTS_WINDOW_SECONDS:
            self._times.popleft()
        if len(self._times) >= self._max:
            return None
        self._times.append(now)
        earlier = len(self._times) - 1
        return min(FIRST_DELAY_SECONDS * 2 ** (earlier - 1), MAX_DELAY_SECONDS) if earlier else 0.0


class Quarantine:
    """The suspects of one worker, which decodes them one at a time."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[int, EngineRequest] = OrderedDict()
        self._alone: EngineRequest | None = None

    def __len__(self) -> int:
        """Returns the number of suspects that have not been answered."""
        return len(self._waiting) + (self._alone is not None)

    def num_waiting(self, priority: Priority) -> int:
        """Returns the number of suspects of a priority that the worker does not have yet."""
        return sum(request.priority is priority for request in self._waiting.values())

    def add(self, suspects: Iterable[EngineRequest]) -> None:
        for request in sorted(suspects, key=lambda request: (request.priority, request.key)):
            self._waiting[request.key] = request

    def next(self) -> EngineRequest | None:
        """Returns the next suspect to be decoded alone, after the one before has been answered."""
        self._alone = self._waiting.popitem(last=False)[1] if self._waiting else None
        return self._alone

    def cancel(self, key: int) -> bool:
        """Removes a suspect whose caller has gone; returns False if it does not wait here."""
        return self._waiting.pop(key, None) is not None

    def died(self) -> EngineRequest | None:
        """Returns the request that was being decoded alone when the worker died, if there was one."""
        poisoned, self._alone = self._alone, None
        return poisoned


class Poisoned:
    """Sources and options of poisoned requests. Identical requests are refused without a trial."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[tuple[int, ...], DecodingOptions], None] = OrderedDict()

    def add(self, request: EngineRequest) -> None:
        self._known[request.source_ids, request.options] = None
        if len(self._known) > MAX_POISONED:
            self._known.popitem(last=False)

    def __contains__(self, request: EngineRequest) -> bool:
        # Almost always there is none, and requests need not be hashed.
        return bool(self._known) and (request.source_ids, request.options) in self._known


HANG_FACTOR = 5.0
"""A round may take this many times as long as rounds of its size do."""

SLOWER_WEIGHT = 0.2
FASTER_WEIGHT = 0.01
"""Weights of a round in the average: slow ones count for more, because the bound must be above them."""


class RoundBound:
    """Learns how long rounds take, by the amount of work that a worker has, in steps of powers of two.

    A worker reports after each round that ends a request, and otherwise now and then. So its silence is as long as a
    round takes. The bound is a multiple of that, and never below a floor, because hosts are sometimes slow.
    """

    def __init__(self, floor_seconds: float) -> None:
        self._floor = floor_seconds
        self._seconds: dict[int, MovingAverage] = {}

    def note(self, size: int, seconds: float) -> None:
        """Learns from a round of a worker whose requests have the total `size_of` size."""
        known = self._seconds.setdefault(size.bit_length(), MovingAverage(FASTER_WEIGHT, max_rise=MAX_RISE))
        known.add(seconds, SLOWER_WEIGHT if seconds > known.value else FASTER_WEIGHT)

    def seconds(self, size: int) -> float:
        """Returns the longest silence that is not a hang. Beyond known sizes, time grows with the work."""
        if not self._seconds:
            return self._floor
        scale = size.bit_length()
        nearest = max((known for known in self._seconds if known <= scale), default=min(self._seconds))
        expected = self._seconds[nearest].value * 2.0 ** max(0, scale - nearest)
        return max(self._floor, HANG_FACTOR * expected)


class WorkerLost(Exception):
    """A worker process could not be started, or ended before it was ready."""


class Slot:
    """The place of one worker in a pool, which successive processes fill.

    Attributes:
        number: in the pool.
        report: the worker's latest.
        requests: those that the worker has, by key.
        quarantine: suspects that only this slot's worker is to decode.
        is_loading: whether its worker is not ready yet.
    """

    def __init__(
        self,
        number: int,
        bound: RoundBound,
        tick_seconds: float,
        on_report: Callable[["Slot", Report], None],
        on_lost: Callable[["Slot"], None],
    ) -> None:
        self.number = number
        self.report = NO_REPORT
        self.requests: dict[int, EngineRequest] = {}
        self.quarantine = Quarantine()
        self.is_loading = False
        self._bound = bound
        self._tick_seconds = tick_seconds
        self._silent_seconds = 0.0
        self._on_report = on_report
        self._on_lost = on_lost
        self._cancelled: set[int] = set()
        self._size = 0
        self._worker: WorkerProcess | None = None
        self._link: Link | None = None

    @property
    def num_running(self) -> int:
        """Number of requests that have rows in the worker, or are on their way to it."""
        return len(self.requests) - sum(self.report.num_waiting)

    async def fill(self, worker: WorkerProcess) -> Ready:
        """Takes over a worker that loads, and waits until it is ready.

        Raises:
            UserError: the worker refuses its bundle.
            WorkerLost
        """
        self._worker, self.is_loading = worker, True
        self._note_message()
        make_link = partial(Link, self._on_message, partial(self._on_lost, self))
        _, self._link = await asyncio.get_running_loop().create_unix_connection(make_link, sock=worker.connection)
        answer = await self._link.first
        self.is_loading = False
        if isinstance(answer, UserError):
            raise answer
        if not isinstance(answer, Ready):
            how = await self.ending() or "it hung up"
            raise WorkerLost(f"it ended while it loaded its bundle ({how}); its own output is above")
        self._bound.note(answer.warm_up_size, answer.warm_up_seconds)
        return answer

    def send(self, request: EngineRequest) -> None:
        assert self._link is not None
        if not self.requests:
            self._note_message()
        self.requests[request.key] = request
        self._size += size_of(request)
        self._link.next_commands().requests.append(request)

    def limit_bulk(self, room: BulkRoom) -> None:
        """Sets what the worker may use for bulk requests from now on."""
        if self._link is not None:
            self._link.next_commands().bulk = room

    def cancel(self, key: int) -> bool:
        """Cancels a request of the worker; returns False if it has no such request."""
        if key not in self.requests or self._link is None:
            return False
        self._cancelled.add(key)
        self._link.next_commands().cancelled.append(key)
        return True

    def ended(self, outcomes: Outcomes) -> list[EngineRequest]:
        """Removes and returns the requests that have ended."""
        requests = [self.requests.pop(key) for key, _ in outcomes]
        self._size -= sum(map(size_of, requests))
        if self._cancelled:
            self._cancelled.difference_update(request.key for request in requests)
        return requests

    def empty(self) -> tuple[list[EngineRequest], list[EngineRequest]]:
        """Removes the requests of a dead worker; returns those that it was computing, and the others."""
        assert self._worker is not None
        computed = self._worker.record.read()
        left = [request for key, request in self.requests.items() if key not in self._cancelled]
        self._forget()
        computing = [request for request in left if request.key in computed]
        return computing, [request for request in left if request.key not in computed]

    def clear(self) -> None:
        """Forgets all requests, because there will be no worker for them."""
        self._forget()
        self.quarantine = Quarantine()

    def tick(self, elapsed_seconds: float) -> float:
        """Returns how long a worker that has work has been silent, after some time has passed.

        A tick that comes late says that this process was held up itself. No message could be read then, so that time
        does not count.
        """
        if not self.requests and not self.is_loading:
            return 0.0
        self._silent_seconds += min(elapsed_seconds, 2 * self._tick_seconds)
        return self._silent_seconds

    @property
    def max_silence(self) -> float:
        """The longest silence, in seconds, that is not a hang, for the requests that the worker has."""
        return self._bound.seconds(self._size)

    def hang_up(self) -> None:
        """Ends the connection; the worker ends after the step under way."""
        if self._link is not None:
            self._link.hang_up()

    def kill(self) -> None:
        if self._worker is not None:
            self._worker.kill()

    async def ending(self) -> str:
        """Returns how a worker that hung up ended, once that is known."""
        assert self._worker is not None
        await until(self._worker.ending, ENDING_SECONDS)
        return self._worker.ending()

    def _forget(self) -> None:
        self.requests, self._cancelled, self._size, self.report = {}, set(), 0, NO_REPORT

    def _note_message(self) -> None:
        # It may have come at any time between two ticks.
        self._silent_seconds = -self._tick_seconds

    def _on_message(self, report: Report) -> None:
        self._note_message()
        self.report = report
        if rounds := [sum(stats.phase_seconds.values()) for stats in report.stats]:
            self._bound.note(self._size, max(rounds))
        self._on_report(self, report)


def size_of(request: EngineRequest) -> int:
    """Returns about how much a request adds to a round: rows that are stepped and positions that are encoded."""
    return request.max_rows + len(request.source_ids)
