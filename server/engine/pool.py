"""The engines of a model, in worker processes behind one queue, and their supervision.

A worker that dies (a crash, an exception, the kernel when memory runs out) is started again, and its requests are
decoded again. Decoding has no side effects, and its result does not depend on the neighbours, so a second time gives
the same answer. Requests that a worker was computing when it died are suspects. Each is decoded alone, before its slot
takes other requests, so that it can harm no other. A request that ends a worker alone as well is poisoned, and is
answered with an error. Finding it takes two deaths, however many suspects there were. A worker that hangs is killed and
treated as one that died. Workers that die too often end the pool.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any

from attendant.runtime.bundle.manifest import Precision
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.errors import UserError
from attendant.server.config import ServerConfig
from attendant.server.engine.dispatch import RESERVED, Ahead, Dispatcher, ExpectedEnds, SharedRows, ThroughputEstimate
from attendant.server.engine.messages import (
    BulkRoom,
    EngineRequest,
    Link,
    Outcomes,
    Priority,
    Ready,
    Report,
    StepStats,
    Updates,
    out_of_time,
)
from attendant.server.engine.processes import Restarts, WorkerProcess
from attendant.server.engine.scheduler import MAX_RISE, MovingAverage
from attendant.server.errors import PoisonedRequest
from attendant.server.polling import begin, until

log = logging.getLogger(__name__)

ENDING_SECONDS = 1.0  # Time that a worker that hung up gets to end, so that the log can have its exit status.
RETRY_SECONDS = 30.0  # Time until a bundle that could not be loaded again is tried once more.
MAX_POISONED = 1024  # Number of poisoned requests that are remembered.
NO_REPORT = Report([], [], [], (0,) * len(Priority), 0)


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


HANG_FACTOR = 5.0  # A round may take this many times as long as rounds of its size do.
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


class BundleChanged(UserError):
    """A worker has loaded another version of the bundle than the first one."""


class Slot:
    """The place of one worker in a pool, which successive processes fill.

    Attributes:
        report: the worker's latest.
        requests: those that the worker has, by key.
        quarantine: suspects that only this slot's worker is to decode.
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
        """Sets the limits of the worker's bulk requests from now on."""
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

        If a tick comes late, this process was held up itself. No message could be read then, so that time does not
        count.
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


TICK_SECONDS = 0.5  # Interval of the checks for silent workers, late requests, and whether bulk work is alone.
LOADING_SLACK_SECONDS = 10.0
"""Time that a worker needs in addition to opening and loading its bundle, each of which has a limit."""

MIN_LOADING_SECONDS = 60.0
LOADING_FACTOR = 3.0  # A worker that is started again may take this many times as long to load as the first one took.


class WorkerPool:
    """The engines of one model, each at the other end of a socket.

    All methods are called from one event loop, and none of them blocks.

    Attributes:
        max_rows: rows that each of them may step together.
        throughput: of one engine.
        precision: of the graphs that the workers run; known when they are ready.
    """

    def __init__(
        self,
        spawn: Callable[[], WorkerProcess],
        config: ServerConfig,
        *,
        version: str,
        shared_rows: SharedRows | None = None,
        on_step: Callable[[StepStats], None],
        on_available: Callable[[bool], None] = lambda available: None,
        on_restart: Callable[[], None] = lambda: None,
        on_stop: Callable[[], None] = lambda: None,
    ) -> None:
        """Makes a pool whose workers are started by `start`.

        Args:
            spawn: starts a worker process, which loads its bundle.
            version: of the bundle.
            shared_rows: of all pools in the server. If None, this one is alone.
            on_step: called in the event loop with each step's stats.
            on_available: called with False when no worker takes requests any more, and with True when one does again.
                Meanwhile requests wait.
            on_restart: called whenever a worker has died and another one is started.
            on_stop: called when no more workers will be started.
        """
        self.num_engines, self.max_rows = config.workers, config.max_rows
        self.throughput = ThroughputEstimate()
        self._spawn = spawn
        self._version = version
        self._on_step = on_step
        self._on_available = on_available
        self._on_restart = on_restart
        self._on_stop = on_stop
        bound = RoundBound(config.hang_seconds)
        self._slots = [
            Slot(number, bound, TICK_SECONDS, self._on_report, self._on_lost) for number in range(config.workers)
        ]
        self._dispatcher = Dispatcher(config.workers, config.max_rows, self._send, shared_rows, self._limit_bulk)
        self._ends = {priority: ExpectedEnds() for priority in RESERVED}
        self._bulk_room = BulkRoom(config.max_rows, is_alone=False)
        self._restarts = Restarts(config.max_restarts)
        self._poisoned = Poisoned()
        self._max_loading_seconds = 2 * config.load_seconds + LOADING_SLACK_SECONDS
        self._stopping = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._on_updates: Callable[[Updates], None]
        self._on_death: Callable[[], None]
        self.precision: Precision

    async def start(self, on_updates: Callable[[Updates], None], on_death: Callable[[], None]) -> None:
        """Starts the workers and waits until all are ready; from the event loop in which the functions will be called.

        Args:
            on_updates: called with outcomes, those of one step together, and with the progress of streams.
            on_death: called once, if the engines have failed for good.

        Raises:
            UserError: a worker's reason to refuse its bundle; of several workers, the first one's.
            WorkerLost
        """
        self._on_updates, self._on_death = on_updates, on_death
        began = time.monotonic()
        self._supervise(self._watch())
        try:
            ready = await asyncio.gather(*map(self._open, self._slots))
        except BaseException as raised:
            self._end()
            if isinstance(raised, OSError):
                raise WorkerLost(raised.strerror) from raised
            raise
        self._max_loading_seconds = max(MIN_LOADING_SECONDS, LOADING_FACTOR * (time.monotonic() - began))
        self.precision = ready[0].precision

    def submit(self, requests: Iterable[EngineRequest]) -> None:
        for request in requests:
            if request in self._poisoned:
                refused: Updates = [(request.key, PoisonedRequest())]
                asyncio.get_running_loop().call_soon(self._on_updates, refused)
            else:
                self._dispatcher.add(request)

    def cancel(self, key: int) -> None:
        """Frees the request's rows within a step. A key that has ended is ignored."""
        if self._dispatcher.cancel(key):
            return
        for slot in self._slots:
            if slot.quarantine.cancel(key) or slot.cancel(key):
                return

    def num_waiting(self, priority: Priority) -> int:
        """Returns the number of requests of that priority that have no rows yet."""
        waiting = self._dispatcher.num_waiting(priority)
        return waiting + sum(
            slot.report.num_waiting[priority] + slot.quarantine.num_waiting(priority) for slot in self._slots
        )

    @property
    def is_available(self) -> bool:
        return self._dispatcher.is_open

    @property
    def num_running(self) -> int:
        return sum(slot.num_running for slot in self._slots)

    @property
    def num_rows(self) -> int:
        """Live hypotheses, as last reported, but no more than the rows of the requests that workers now have."""
        return sum(min(slot.report.num_rows, self._dispatcher.num_rows(slot.number)) for slot in self._slots)

    def ahead(self, priority: Priority, client: str, work: float) -> Ahead:
        """Returns the work before a new request of `work` expected rows x steps of this client."""
        return self._dispatcher.ahead(priority, client, work)

    def freeing(self, priority: Priority, num_rows: int, num_ahead: float) -> tuple[float, float] | None:
        """Returns which request's end frees a new request's rows (see `ExpectedEnds`); None if they are free now."""
        num_held = self._dispatcher.num_held(priority)
        num_missing = num_rows - self.num_engines * self.max_rows + num_held
        if num_ahead < 1 and num_missing <= 0:
            return None
        return self._ends[priority].freeing(num_missing, num_ahead, num_held)

    def stop(self) -> None:
        """Hangs up: each worker ends after its step. Requests in flight get no outcome."""
        self._stopping = True
        for slot in self._slots:
            slot.hang_up()
        self._on_stop()
        self._dispatcher.clear()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()

    async def _open(self, slot: Slot) -> Ready:
        """Starts a worker, and opens it before it can be lost. Raises the errors of `_fill`."""
        ready = await self._fill(slot)
        self._dispatcher.open(slot.number)
        return ready

    def _send(self, worker: int, request: EngineRequest) -> None:
        if (ends := self._ends.get(request.priority)) is not None:
            ends.add(request, time.monotonic(), self.throughput.step_seconds(self.max_rows))
        self._slots[worker].send(request)

    def _limit_bulk(self, num_pools: int, is_alone: bool) -> None:
        room = BulkRoom(max(1, self.max_rows // num_pools), is_alone)
        if room != self._bulk_room:
            self._bulk_room = room
            for slot in self._slots:
                slot.limit_bulk(room)

    def _on_report(self, slot: Slot, report: Report) -> None:
        ended = slot.ended(report.outcomes)
        self._forget(ended)
        missed = self._missed()
        # Before anything else, so that the worker does not wait.
        if not slot.quarantine:
            self._dispatcher.ended(slot.number, ended)
        elif ended:
            self._go_on(slot)
        self._on_updates([*report.progress, *report.outcomes, *missed])
        # After the callers that have just been woken: an answer need not wait for the metrics of its steps.
        asyncio.get_running_loop().call_soon(self._note, report.stats)

    def _forget(self, requests: Iterable[EngineRequest]) -> None:
        """Removes requests that no worker has any more from the expected ends."""
        for request in requests:
            if (ends := self._ends.get(request.priority)) is not None:
                ends.remove(request.key)

    def _note(self, steps: Iterable[StepStats]) -> None:
        for stats in steps:
            self.throughput.note(stats)
            self._on_step(stats)

    def _missed(self) -> Updates:
        """Removes requests that have waited too long, and returns their errors."""
        now = time.monotonic()
        return [(request.key, out_of_time(request, now)) for request in self._dispatcher.missed(now)]

    def _go_on(self, slot: Slot) -> None:
        """Sends a slot's worker the next suspect, or opens it for all requests if there is none."""
        suspect = slot.quarantine.next()
        if suspect is not None:
            slot.send(suspect)
            return
        was_open = self._dispatcher.is_open
        self._dispatcher.open(slot.number)
        if not was_open:
            self._on_available(True)

    def _on_lost(self, slot: Slot) -> None:
        if not self._stopping:
            self._supervise(self._replace(slot))

    async def _replace(self, slot: Slot) -> None:
        """Decodes a dead worker's requests again, and starts another process in its place."""
        tried = slot.quarantine.died()
        self._forget(slot.requests.values())
        suspects, bystanders = slot.empty()
        facts = {"computing": len(suspects), "waiting": len(bystanders)}
        if tried in suspects:
            self._poisoned.add(tried)
            self._on_updates([(tried.key, PoisonedRequest())])
            suspects = []
        elif tried is not None:  # the worker had not begun it, or its caller has gone
            suspects, bystanders = bystanders, []
        slot.quarantine.add(suspects)
        self._dispatcher.close(slot.number, bystanders)
        if not self._dispatcher.is_open:
            self._on_available(False)
        how = await slot.ending()
        log.error("a worker process has died", extra={"how": how or "it hung up", **facts})
        slot.kill()
        delay = self._restarts.delay(time.monotonic())
        while delay is not None:
            await asyncio.sleep(delay)
            self._on_restart()
            try:
                await self._fill(slot)
            except (UserError, WorkerLost, OSError) as error:
                is_refused = isinstance(error, UserError)
                if isinstance(error, BundleChanged) or (is_refused and not self._dispatcher.is_open):
                    self._die(f"a worker process can't be started again: {error}")
                    return
                slot.kill()
                log.error("a worker process did not load its bundle again", extra={"why": str(error)})
                # Its files may become readable again. Meanwhile, other workers answer.
                delay = RETRY_SECONDS if is_refused else self._restarts.delay(time.monotonic())
            else:
                log.warning("a worker process serves again", extra={"suspects": len(slot.quarantine)})
                self._go_on(slot)
                return
        self._die("worker processes have died too often")

    async def _fill(self, slot: Slot) -> Ready:
        """Starts a worker and waits until it is ready. Raises the errors of Slot.fill, and OSError."""
        ready = await slot.fill(self._spawn())
        if ready.version != self._version:
            raise BundleChanged(f"the bundle has changed: it is version {ready.version}, was {self._version}")
        slot.limit_bulk(self._bulk_room)
        return ready

    async def _watch(self) -> None:
        """Checks for silent workers, for late requests (while no worker reports), and whether bulk work is alone."""
        then = time.monotonic()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = time.monotonic()
            self._dispatcher.tick(now)
            if missed := self._missed():
                self._on_updates(missed)
            for slot in self._slots:
                silence = slot.tick(now - then)
                if slot.is_loading:
                    if silence > self._max_loading_seconds:
                        log.error("a worker process does not load its bundle", extra={"seconds": round(silence)})
                        slot.kill()
                elif silence > (bound := slot.max_silence):
                    log.error("a worker process hangs, and is replaced", extra={"silent_seconds": round(bound, 1)})
                    # As if it had died: the requests that it was computing are suspected.
                    slot.kill()
                    slot.hang_up()
            then = now

    def _supervise(self, work: Coroutine[Any, Any, None]) -> None:
        begin(work, self._tasks).add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (raised := task.exception()) is not None:
            log.error("the supervision of worker processes has failed", exc_info=raised)
            self._die("worker processes are no longer supervised")

    def _die(self, why: str) -> None:
        if not self._stopping:
            log.error("the engines of a model have failed for good", extra={"version": self._version, "why": why})
            self._end()
            self._on_death()

    def _end(self) -> None:
        """Ends all workers at once, and forgets their requests."""
        self.stop()
        for slot in self._slots:
            slot.kill()
            slot.clear()
