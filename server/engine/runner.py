"""The thread that owns the model, and the way in and out of it for asyncio.

asyncio never touches the engine: it leaves requests and cancellations in an inbox under a lock and awaits futures,
which are resolved by one `call_soon_threadsafe` per step. With nothing to do the thread sleeps on a condition.
"""

import asyncio
import itertools
import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from runtime.decoding.search import Search
from server.engine.engine import Engine
from server.engine.pace import Pace
from server.engine.request import EngineRequest, Outcome, Result, StepStats
from server.errors import AttendantError, DeadlineTooShort, Draining, EngineDead, QueueFull

log = logging.getLogger(__name__)

MIN_RETRY_SECONDS = 0.05


class EngineRunner:
    """One engine, one thread. All methods are called from the event loop that `start` was called from."""

    def __init__(
        self,
        name: str,
        engine: Engine,
        *,
        max_waiting: int,
        on_step: Callable[[StepStats], None],
        on_death: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes over an engine: from `start` on, only the thread touches it.

        Args:
            max_waiting: requests that may wait; one more is refused at the door.
            on_step: called on the engine's thread with each step's stats.
            on_death: called once, in the event loop, after a step has failed and every request was told.
            clock: the engine's own.
        """
        self._engine = engine
        self._max_waiting = max_waiting
        self._on_step = on_step
        self._on_death = on_death
        self._clock = clock
        self._keys = itertools.count()
        self._pace = Pace()
        self._wake = threading.Condition()
        self._inbox: list[EngineRequest] = []
        self._cancelled: list[int] = []
        self._draining = self._stopping = self._dead = False
        self._futures: dict[int, asyncio.Future[Outcome]] = {}
        self._thread = threading.Thread(target=self._run, name=f"engine-{name}", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Starts the thread; from the event loop whose futures it will resolve."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def run(
        self, source_ids: tuple[int, ...], search: Search, max_rows: int, timeout_seconds: float | None
    ) -> Result:
        """Waits for a request's turn and its end.

        Args:
            max_rows: that the search may come to have; at most the engine's budget.
            timeout_seconds: what is left until the caller's deadline; None: no deadline.

        Raises:
            AttendantError: any other outcome than a result.
            asyncio.CancelledError: the caller went; the request's rows are free within a step.
        """
        self._refuse_at_the_door(timeout_seconds)
        now = self._clock()
        request = EngineRequest(
            key=next(self._keys),
            source_ids=source_ids,
            search=search,
            max_rows=max_rows,
            submitted=now,
            deadline=None if timeout_seconds is None else now + timeout_seconds,
        )
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._futures[request.key] = future
        with self._wake:
            self._inbox.append(request)
            self._wake.notify()
        try:
            outcome = await future
        except asyncio.CancelledError:
            self._cancel(request.key)
            raise
        if isinstance(outcome, AttendantError):
            raise outcome
        return outcome

    @property
    def num_waiting(self) -> int:
        with self._wake:  # not while the inbox is on its way into the engine: it would count twice
            return len(self._inbox) + self._engine.scheduler.num_waiting

    @property
    def num_running(self) -> int:
        return self._engine.scheduler.num_running

    @property
    def num_rows(self) -> int:
        return self._engine.num_rows

    def drain(self) -> None:
        """Lets nobody in any more; what is in goes on."""
        self._draining = True

    async def finished(self) -> None:
        """Waits until every request that is in has been answered. For a runner that drains."""
        while self._futures:
            await asyncio.wait(list(self._futures.values()))
            # The callers wake up beside us: let them take their answers.
            await asyncio.sleep(0)

    async def stop(self, timeout_seconds: float = 5.0) -> None:
        """Ends the thread after its step; requests that are still in are told that the server is going."""
        with self._wake:
            self._draining = self._stopping = True
            self._wake.notify()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, timeout_seconds)
        self._fail_all(Draining)

    def _refuse_at_the_door(self, timeout_seconds: float | None) -> None:
        if self._dead:
            raise EngineDead
        if self._draining:
            raise Draining
        num_waiting = self.num_waiting
        expected = self._pace.expected_seconds(num_waiting)
        if num_waiting >= self._max_waiting:
            raise QueueFull(self._max_waiting, max(expected / 2, MIN_RETRY_SECONDS))
        # The estimate is rough: only a deadline that is out of reach by far is refused for it.
        if timeout_seconds is not None and (timeout_seconds <= 0 or 2 * timeout_seconds < expected):
            raise DeadlineTooShort(timeout_seconds, max(expected, MIN_RETRY_SECONDS))

    def _cancel(self, key: int) -> None:
        # Its outcome will find no future, and be dropped.
        self._futures.pop(key, None)
        with self._wake:
            self._cancelled.append(key)
            self._wake.notify()

    def _run(self) -> None:
        """The engine's thread."""
        try:
            while self._take_in():
                began = self._clock()
                result = self._engine.step()
                if result.outcomes:
                    self._call(partial(self._resolve, result.outcomes))
                self._pace.note(self._clock() - began, len(result.outcomes))
                self._on_step(result.stats)
        except Exception:
            log.exception("a step failed: every request in flight is refused and the server ends")
            self._call(self._die)

    def _take_in(self) -> bool:
        """Moves the inbox into the engine, sleeping while there is nothing to do; False: stop."""
        with self._wake:
            while not (self._stopping or self._inbox or self._cancelled or self._engine.has_work):
                self._wake.wait()
            if self._stopping:
                return False
            for request in self._inbox:
                self._engine.submit(request)
            self._inbox.clear()
            for key in self._cancelled:
                self._engine.cancel(key)
            self._cancelled.clear()
        return True

    def _call(self, function: Callable[[], None]) -> None:
        """Has the event loop call a function, unless it has ended: then nobody waits any more."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            log.debug("the event loop has ended before the engine")

    def _resolve(self, outcomes: list[tuple[int, Outcome]]) -> None:
        for key, outcome in outcomes:
            future = self._futures.pop(key, None)
            if future is not None and not future.done():
                future.set_result(outcome)

    def _die(self) -> None:
        self._dead = True
        self._fail_all(EngineDead)
        self._on_death()

    def _fail_all(self, error: type[EngineDead | Draining]) -> None:
        self._resolve([(key, error()) for key in list(self._futures)])
