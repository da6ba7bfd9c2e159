"""Engines in worker processes behind one queue, on the event loop: who decodes what, and what happens if one dies.

A worker that dies (a crash, an exception, the kernel when memory runs out) is started again, and what it had is decoded
once more. Whatever it was computing at that moment is suspected: each suspect is decoded alone, before its slot takes
other requests, and one that ends the worker alone as well is answered with an error. A worker that hangs is killed, and
treated as one that has died. Workers that die too often end the pool.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from attendant.runtime.bundle.manifest import Precision
from attendant.runtime.errors import UserError
from attendant.runtime.process import LOAD_SECONDS
from attendant.server.engine.estimates import RoundBound, ThroughputEstimate, averaged
from attendant.server.engine.protocol import Ready, Report
from attendant.server.engine.queue import Ahead, FairQueue
from attendant.server.engine.request import BulkRoom, EngineRequest, Priority, StepStats, Updates, out_of_time
from attendant.server.engine.shares import RESERVED, SharedRows
from attendant.server.engine.supervision import Poisoned, Restarts, Slot, Worker, WorkerLost
from attendant.server.errors import PoisonedRequest

Given = list[tuple[int, EngineRequest]]
"""What is to be sent, and to which worker."""

LONG_FACTOR: Final = 1.5
"""A request is long if it is expected to take more than so many times the mean steps."""

LONG_ROW_WEIGHT: Final = 3
"""So many rows does one of a long request count as, where a worker is chosen for a short one."""

MEAN_WEIGHT: Final = 0.02
"""Of a request, in the moving average of the steps that requests are expected to take."""


@dataclass(slots=True)
class _Load:
    """What a worker has of a priority.

    Attributes:
        rows: of its requests.
        long: of those that are long, by key.
    """

    rows: int = 0
    long: dict[int, int] = field(default_factory=dict)

    @property
    def weight(self) -> int:
        """What counts where a worker is chosen for a short request."""
        return self.rows + (LONG_ROW_WEIGHT - 1) * sum(self.long.values())


class Dispatcher:
    """The queues, and how many rows each worker has been given."""

    def __init__(
        self,
        num_workers: int,
        max_rows: int,
        shared: SharedRows | None = None,
        on_room: Callable[[], None] = lambda: None,
        on_bulk: Callable[[int, bool], None] = lambda num_dispatchers, is_alone: None,
    ) -> None:
        """No worker is open yet.

        Args:
            max_rows: of each priority but bulk, of each worker.
            shared: the rows of all dispatchers in the server; None: this one is alone.
            on_room: called when others have given back rows that were waited for here; `next` says what can be sent.
            on_bulk: called with the number of dispatchers whose workers have bulk requests, where this is one of them,
                and whether these are alone; whenever either changes.
        """
        self._shared = shared or SharedRows(num_workers * max_rows)
        self._shares = {priority: self._shared.share(priority, on_room) for priority in RESERVED}
        self._on_bulk, self._has_bulk = on_bulk, False
        self._num_workers, self._max_rows = num_workers, max_rows
        self._open: list[int] = []
        self._waiting = {priority: FairQueue() for priority in Priority}
        self._loads = {priority: [_Load() for _ in range(num_workers)] for priority in Priority}
        self._mean_steps: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether any worker is."""
        return bool(self._open)

    def num_waiting(self, priority: Priority) -> int:
        """Requests that no worker has room for."""
        return len(self._waiting[priority])

    def ahead(self, priority: Priority, client: str, work: float) -> Ahead:
        """What waits before a request of so many expected rows x steps; `num_own` counts light and heavy ones."""
        num_own = sum([self._waiting[kind].num_of(client) for kind in RESERVED])
        ahead = self._waiting[priority].ahead(client, work)
        return Ahead(ahead.work, ahead.num_requests, num_own)

    def missed(self, now: float) -> list[EngineRequest]:
        """Takes out those that wait and can't be answered before their deadlines any more."""
        return [
            request
            for queue in self._waiting.values()
            for key in queue.missed(now)
            if (request := queue.remove(key)) is not None
        ]

    def look(self, now: float) -> None:
        """Time has passed: see SharedRows."""
        self._shared.look(now)

    def open(self, worker: int) -> Given:
        """A worker takes requests from now on; returns what is to be sent now."""
        self._open.append(worker)
        return self.next()

    def close(self, worker: int) -> None:
        """A worker is given nothing more, and what it had counts no longer."""
        if worker in self._open:
            self._open.remove(worker)
        for priority, loads in self._loads.items():
            self._free(priority, loads[worker].rows)
            loads[worker] = _Load()
        self._offer()

    def add(self, request: EngineRequest) -> Given:
        """Takes a request in; returns what is to be sent now."""
        if request.priority is not Priority.BULK:
            self._shared.asked(request.submitted)
        queue = self._waiting[request.priority]
        # Where nobody waits it is this one's turn: the queue would give it back, and forget its client.
        if not queue and self._open and self._takes(request.priority, request.max_rows):
            worker = self._give(request)
            self._note_bulk()
            return [(worker, request)]
        queue.add(request)
        return self.next()

    def take_back(self, requests: Iterable[EngineRequest]) -> Given:
        """Takes in again, before all others, what a closed worker had; returns the same."""
        for request in sorted(requests, key=lambda one: one.key, reverse=True):
            self._waiting[request.priority].put_back(request)
        return self.next()

    def cancel(self, key: int) -> bool:
        """Nobody waits for this request any more; False: it does not wait here."""
        return any(queue.remove(key) is not None for queue in self._waiting.values())

    def ended(self, worker: int, requests: Iterable[EngineRequest]) -> Given:
        """Requests that the worker had have ended; returns what is to be sent in their place."""
        for request in requests:
            load = self._loads[request.priority][worker]
            load.rows -= request.max_rows
            load.long.pop(request.key, None)
            self._free(request.priority, request.max_rows)
        given = self.next()
        self._offer()
        return given

    def clear(self) -> None:
        """Nothing waits any more, and the workers have nothing: they have been let go."""
        self._waiting = {priority: FairQueue() for priority in Priority}
        for worker in range(self._num_workers):
            self.close(worker)

    def next(self) -> Given:
        """What is to be sent now."""
        sent: Given = []
        for priority, queue in self._waiting.items():
            # The request whose turn it is is waited for until it fits, so that it does not starve behind smaller ones.
            while self._open and (request := queue.first()) is not None and self._takes(priority, request.max_rows):
                queue.take(request.key)
                sent.append((self._give(request), request))
        self._note_bulk()
        return sent

    def _takes(self, priority: Priority, num_rows: int) -> bool:
        """Whether a worker has room for so many rows, and the server had them, which are taken now."""
        if priority is Priority.BULK:
            return True
        return bool(self._with_room(priority, num_rows)) and self._shares[priority].take(num_rows)

    def _with_room(self, priority: Priority, num_rows: int) -> list[int]:
        """The open workers that may be given so many rows more."""
        loads = self._loads[priority]
        return [worker for worker in self._open if loads[worker].rows + num_rows <= self._max_rows]

    def _free(self, priority: Priority, num_rows: int) -> None:
        if priority is not Priority.BULK:
            self._shares[priority].give_back(num_rows)

    def _give(self, request: EngineRequest) -> int:
        loads, num_rows = self._loads[request.priority], request.max_rows
        if request.priority is Priority.BULK:
            worker = min(self._open, key=lambda one: loads[one].rows)
        else:
            self._mean_steps = averaged(self._mean_steps, request.expected_steps, MEAN_WEIGHT)
            with_room = self._with_room(request.priority, num_rows)
            if request.expected_steps > LONG_FACTOR * self._mean_steps:
                worker = min(with_room, key=lambda one: loads[one].rows)
                loads[worker].long[request.key] = num_rows
            else:
                worker = min(with_room, key=lambda one: loads[one].weight)
        loads[worker].rows += num_rows
        return worker

    def _offer(self) -> None:
        for share in self._shares.values():
            share.offer()
        self._note_bulk()

    def _note_bulk(self) -> None:
        has_bulk = any(load.rows for load in self._loads[Priority.BULK])
        if has_bulk != self._has_bulk:
            self._has_bulk = has_bulk
            self._shared.divide_bulk(self._on_bulk, has_bulk=has_bulk)


log = logging.getLogger(__name__)

TICK_SECONDS = 0.5
"""How often the watchdog looks."""

ENDING_SECONDS = 1.0
"""How long a worker that hung up is waited for, to learn how it ended."""

LOADING_SLACK_SECONDS = 10.0
"""A worker that opens a bundle and then loads it, each within its limit, needs this much besides."""

MIN_LOADING_SECONDS = 60.0
LOADING_FACTOR = 3.0
"""A worker that is started again may take so many times as long to load as the first one took."""


class WorkerPool:
    """The engines of one model: each answers at the other end of a socket.

    Takes requests, tells how they ended. All methods are called from one event loop, and none of them blocks.

    Attributes:
        num_engines: workers.
        max_rows: of each, that may be stepped together.
        throughput: of one engine.
        precision: of the graphs that the workers run; known when they are ready.
    """

    def __init__(
        self,
        spawn: Callable[[], Worker],
        num_workers: int,
        *,
        version: str,
        max_rows: int,
        hang_seconds: float,
        max_restarts: int,
        load_seconds: float = LOAD_SECONDS,
        on_step: Callable[[StepStats], None],
        shared_rows: SharedRows | None = None,
        on_restart: Callable[[], None] = lambda: None,
        on_stop: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts nothing yet.

        Args:
            spawn: starts a worker process, which loads its bundle.
            version: of the bundle.
            max_rows: of each worker.
            hang_seconds: a worker that has work may always be silent for so long.
            max_restarts: within Restarts' window.
            load_seconds: the limit of opening a bundle, and that of loading it.
            on_step: called in the event loop with each step's stats.
            shared_rows: of all pools in the server; None: this one is alone.
            on_restart: called whenever a worker has died and another one is started.
            on_stop: called when no more workers will be started.
        """
        self.num_engines, self.max_rows, self.throughput = num_workers, max_rows, ThroughputEstimate()
        self._spawn = spawn
        self._version = version
        self._on_step = on_step
        self._on_restart = on_restart
        self._on_stop = on_stop
        self._clock = clock
        self._dispatcher = Dispatcher(num_workers, max_rows, shared_rows, self._send_more, self._limit_bulk)
        self._bulk_room = BulkRoom(max_rows, is_alone=False)
        self._restarts = Restarts(max_restarts)
        self._poisoned = Poisoned()
        bound = RoundBound(hang_seconds)
        self._slots = [
            Slot(number, bound, TICK_SECONDS, self._on_report, self._on_lost) for number in range(num_workers)
        ]
        self._max_loading_seconds = 2 * load_seconds + LOADING_SLACK_SECONDS
        self._stopping = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._on_updates: Callable[[Updates], None]
        self._on_death: Callable[[], None]
        self._on_available: Callable[[bool], None]
        self.precision: Precision

    async def start(
        self,
        on_updates: Callable[[Updates], None],
        on_death: Callable[[], None],
        on_available: Callable[[bool], None],
    ) -> None:
        """Starts the workers and waits until all are ready; from the event loop in which the functions will be called.

        Args:
            on_updates: called with the requests that have ended, those of one step together, and with the progress of
                those that stream.
            on_death: called once, if the engines have failed for good; nothing follows it.
            on_available: called with False when no worker takes requests any more, with True when one does again.
                Meanwhile requests wait.

        Raises:
            UserError: the first worker that refused its bundle says why.
            RuntimeError: a worker ended while it loaded.
        """
        self._on_updates, self._on_death, self._on_available = on_updates, on_death, on_available
        began = self._clock()
        self._begin(self._watch())
        try:
            ready = await asyncio.gather(*map(self._fill, self._slots))
        except BaseException as raised:
            self._end()
            if isinstance(raised, WorkerLost):
                why = "a worker process ended while it loaded its bundle; what it said stands above"
                raise RuntimeError(why) from None
            raise
        self._max_loading_seconds = max(MIN_LOADING_SECONDS, LOADING_FACTOR * (self._clock() - began))
        for slot in self._slots:
            self._send(self._dispatcher.open(slot.number))
        self.precision = ready[0].precision

    def submit(self, requests: Iterable[EngineRequest]) -> None:
        """Puts requests at the end of their queues."""
        for request in requests:
            if request in self._poisoned:
                refused: Updates = [(request.key, PoisonedRequest())]
                asyncio.get_running_loop().call_soon(self._on_updates, refused)
            else:
                self._send(self._dispatcher.add(request))

    def cancel(self, key: int) -> None:
        """Frees what the request holds, within a step. A key that has ended is ignored."""
        if not self._dispatcher.cancel(key):
            any(slot.quarantine.cancel(key) or slot.cancel(key) for slot in self._slots)

    def num_waiting(self, priority: Priority) -> int:
        """Requests of that priority that have no rows yet."""
        waiting = self._dispatcher.num_waiting(priority)
        return waiting + sum(
            slot.report.num_waiting[priority] + slot.quarantine.num_waiting(priority) for slot in self._slots
        )

    @property
    def num_running(self) -> int:
        """Requests that have rows."""
        return sum(slot.num_running for slot in self._slots)

    @property
    def num_rows(self) -> int:
        """Live hypotheses of all of them."""
        return sum(slot.report.num_rows for slot in self._slots)

    def ahead(self, priority: Priority, client: str, work: float) -> Ahead:
        """What waits before a request of so many expected rows x steps of this client."""
        return self._dispatcher.ahead(priority, client, work)

    def stop(self) -> None:
        """Hangs up: each worker ends after its step, and leaves what is still in without an outcome."""
        self._stopping = True
        for slot in self._slots:
            slot.hang_up()
        self._on_stop()
        self._dispatcher.clear()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()

    def _send(self, given: Iterable[tuple[int, EngineRequest]]) -> None:
        for worker, request in given:
            self._slots[worker].send(request)

    def _send_more(self) -> None:
        self._send(self._dispatcher.next())

    def _limit_bulk(self, num_pools: int, is_alone: bool) -> None:
        """So many pools of the server have bulk requests, of which this is one; and whether these are alone."""
        room = BulkRoom(max(1, self.max_rows // num_pools), is_alone)
        if room != self._bulk_room:
            self._bulk_room = room
            for slot in self._slots:
                slot.limit_bulk(room)

    def _on_report(self, slot: Slot, report: Report) -> None:
        ended = slot.ended(report.outcomes)
        missed = self._missed()
        # Before anything else, so that the worker does not wait.
        if not slot.quarantine:
            self._send(self._dispatcher.ended(slot.number, ended))
        elif ended:
            self._go_on(slot)
        self._on_updates([*report.progress, *report.outcomes, *missed])
        # Behind the callers who have just been woken: an answer need not wait for the metrics of its steps.
        asyncio.get_running_loop().call_soon(self._note, report.stats)

    def _note(self, steps: Iterable[StepStats]) -> None:
        for stats in steps:
            self.throughput.note(stats)
            self._on_step(stats)

    def _missed(self) -> Updates:
        """Those that have waited too long: they can't be answered before their deadline any more."""
        now = self._clock()
        return [(request.key, out_of_time(request, now)) for request in self._dispatcher.missed(now)]

    def _go_on(self, slot: Slot) -> None:
        """Gives a slot's worker the next suspect; without any, it takes whatever comes."""
        suspect = slot.quarantine.next()
        if suspect is not None:
            slot.send(suspect)
            return
        was_open = self._dispatcher.is_open
        self._send(self._dispatcher.open(slot.number))
        if not was_open:
            self._on_available(True)

    def _on_lost(self, slot: Slot) -> None:
        if not self._stopping:
            self._begin(self._replace(slot))

    async def _replace(self, slot: Slot) -> None:
        """A worker has died: what it had is decoded again, and another process takes its place."""
        tried = slot.quarantine.died()
        suspects, bystanders = slot.empty()
        facts = {"computing": len(suspects), "waiting": len(bystanders)}
        self._dispatcher.close(slot.number)
        if not self._dispatcher.is_open:
            self._on_available(False)
        if tried is not None:
            if tried in suspects:
                self._poisoned.add(tried)
                self._on_updates([(tried.key, PoisonedRequest())])
                suspects = []
            else:  # it was not begun, or nobody waits for it any more
                suspects, bystanders = bystanders, []
        slot.quarantine.add(suspects)
        self._send(self._dispatcher.take_back(bystanders))
        how = await slot.ending(ENDING_SECONDS)
        log.error("a worker process has died", extra={"how": how or "it hung up", **facts})
        slot.kill()
        while (delay := self._restarts.delay(self._clock())) is not None:
            await asyncio.sleep(delay)
            self._on_restart()
            try:
                await self._fill(slot)
            except UserError as error:
                self._die(f"a worker process can't be started again: {error}")
                return
            except (WorkerLost, OSError) as error:
                slot.kill()
                log.error("a worker process did not load its bundle again", extra={"why": repr(error)})
            else:
                log.warning("a worker process serves again", extra={"suspects": len(slot.quarantine)})
                self._go_on(slot)
                return
        self._die("worker processes have died too often")

    async def _fill(self, slot: Slot) -> Ready:
        """Starts a worker and waits until it is ready. Raises what Slot.fill does, and OSError."""
        ready = await slot.fill(self._spawn())
        if ready.version != self._version:
            raise UserError(f"the bundle has changed: it is version {ready.version}, was {self._version}")
        slot.limit_bulk(self._bulk_room)
        return ready

    async def _watch(self) -> None:
        """Looks at every worker's silence, at whether bulk work is alone, and at what waits.

        While no worker says anything, nobody else looks at what waits.
        """
        then = self._clock()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = self._clock()
            self._dispatcher.look(now)
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
                    # As one that has died: what it was computing is suspected.
                    slot.kill()
                    slot.hang_up()
            then = now

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (raised := task.exception()) is not None:
            log.error("the care for worker processes has failed", exc_info=raised)
            self._die("nobody takes care of worker processes any more")

    def _die(self, why: str) -> None:
        if not self._stopping:
            log.error("the engines of a model have failed for good", extra={"version": self._version, "why": why})
            self._end()
            self._on_death()

    def _end(self) -> None:
        """Ends all workers at once, whatever they do, and forgets what they had."""
        self.stop()
        for slot in self._slots:
            slot.kill()
            slot.clear()
