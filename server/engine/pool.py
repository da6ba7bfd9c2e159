"""The engines of a model, in worker processes behind one queue: dispatches requests, and replaces workers that die.

A worker that dies (a crash, an exception, the kernel when memory runs out) is started again, and its requests are
decoded again. Those that it was computing are suspected: each suspect is decoded alone before its slot takes other
requests, and one that ends the worker alone as well is answered with an error. A worker that hangs is killed and
treated as one that died. Workers that die too often end the pool.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from attendant.runtime.bundle.manifest import Precision
from attendant.runtime.errors import UserError
from attendant.server.config import ServerConfig
from attendant.server.engine.estimates import ExpectedEnds, MovingAverage, ThroughputEstimate
from attendant.server.engine.messages import (
    BulkRoom,
    EngineRequest,
    Priority,
    Ready,
    Report,
    StepStats,
    Updates,
    out_of_time,
)
from attendant.server.engine.processes import WorkerProcess
from attendant.server.engine.scheduler import Ahead, FairQueue
from attendant.server.engine.shares import RESERVED, SharedRows
from attendant.server.engine.supervision import Poisoned, Restarts, RoundBound, Slot, WorkerLost
from attendant.server.errors import PoisonedRequest
from attendant.server.polling import begin

log = logging.getLogger(__name__)

LONG_FACTOR: Final = 1.5
"""A request is long if it is expected to take more than this many times the mean steps."""

LONG_ROW_WEIGHT: Final = 3
"""Weight of a long request's row when a worker is chosen for a short request."""

MEAN_WEIGHT: Final = 0.02
"""Weight of a request in the mean of expected steps."""

BULK_AHEAD: Final = 2
"""A worker gets bulk requests of up to this many times its rows, so that it never waits for the server."""

TICK_SECONDS = 0.5
"""Interval of the checks for silent workers, late requests, and whether bulk work is alone."""

LOADING_SLACK_SECONDS = 10.0
"""Time that a worker needs in addition to opening and loading its bundle, each of which has a limit."""

MIN_LOADING_SECONDS = 60.0
LOADING_FACTOR = 3.0
"""A worker that is started again may take this many times as long to load as the first one took."""


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

    An interactive or heavy request goes to the worker with the fewest rows of its priority, as soon as one has room:
    several small batches on several cores answer sooner than a large one on one. Bulk requests are sent some way ahead.
    While no worker is open, all requests wait.

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
        """True if any worker takes requests."""
        return bool(self._open)

    def num_waiting(self, priority: Priority) -> int:
        """Returns the number of requests that no worker has room for."""
        return len(self._waiting[priority])

    def num_rows(self, worker: int) -> int:
        """Returns the rows of the requests that a worker has."""
        return sum(loads[worker].rows for loads in self._loads.values())

    def ahead(self, priority: Priority, client: str, work: float) -> Ahead:
        """Returns what waits before a new request of `work` rows x steps; `num_own` counts light and heavy requests."""
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
        """Lets a worker take requests from now on."""
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
        """Sends what there is room for."""
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


class WorkerPool:
    """The engines of one model, each at the other end of a socket.

    All methods are called from one event loop, and none of them blocks.

    Attributes:
        num_engines: number of workers.
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
            UserError: the first worker that refused its bundle says why.
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
        """Puts requests at the end of their queues."""
        for request in requests:
            if request in self._poisoned:
                refused: Updates = [(request.key, PoisonedRequest())]
                asyncio.get_running_loop().call_soon(self._on_updates, refused)
            else:
                self._dispatcher.add(request)

    def cancel(self, key: int) -> None:
        """Frees what the request holds, within a step. A key that has ended is ignored."""
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
        """True if any worker takes requests."""
        return self._dispatcher.is_open

    @property
    def num_running(self) -> int:
        """Number of requests that have rows."""
        return sum(slot.num_running for slot in self._slots)

    @property
    def num_rows(self) -> int:
        """Live hypotheses, as last reported, but no more than the rows of the requests that workers now have."""
        return sum(min(slot.report.num_rows, self._dispatcher.num_rows(slot.number)) for slot in self._slots)

    def ahead(self, priority: Priority, client: str, work: float) -> Ahead:
        """Returns what waits before a new request of `work` expected rows x steps of this client."""
        return self._dispatcher.ahead(priority, client, work)

    def freeing(self, priority: Priority, num_rows: int, num_ahead: float) -> tuple[float, float] | None:
        """Returns which request's end frees a new request's rows (see `ExpectedEnds`); None if they are free now."""
        ends = self._ends[priority]
        num_free = self.num_engines * self.max_rows - ends.num_rows
        return None if num_ahead < 1 and num_rows <= num_free else ends.freeing(num_rows - num_free, num_ahead)

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
        # After the callers who have just been woken: an answer need not wait for the metrics of its steps.
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
        while (delay := self._restarts.delay(time.monotonic())) is not None:
            await asyncio.sleep(delay)
            self._on_restart()
            try:
                await self._fill(slot)
            except UserError as error:
                self._die(f"a worker process can't be started again: {error}")
                return
            except (WorkerLost, OSError) as error:
                slot.kill()
                log.error("a worker process did not load its bundle again", extra={"why": str(error)})
            else:
                log.warning("a worker process serves again", extra={"suspects": len(slot.quarantine)})
                self._go_on(slot)
                return
        self._die("worker processes have died too often")

    async def _fill(self, slot: Slot) -> Ready:
        """Starts a worker and waits until it is ready. Raises the errors of Slot.fill, and OSError."""
        ready = await slot.fill(self._spawn())
        if ready.version != self._version:
            raise UserError(f"the bundle has changed: it is version {ready.version}, was {self._version}")
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
