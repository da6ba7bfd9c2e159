"""An engine on a thread of this process, which owns the model.

asyncio never touches the engine: it leaves requests and cancellations in an inbox under a lock, and is told of
outcomes by one `call_soon_threadsafe` per step. With nothing to do the thread sleeps on a condition.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from functools import partial

from attendant.server.engine.engine import Engine
from attendant.server.engine.queueing.fair_queue import Ahead
from attendant.server.engine.request import EngineRequest, Outcomes, Priority, StepStats
from attendant.server.engine.throughput import Pace

log = logging.getLogger(__name__)


class EngineThread:
    """One engine, one thread: an `EngineHost`."""

    def __init__(
        self,
        name: str,
        engine: Engine,
        *,
        on_step: Callable[[StepStats], None],
    ) -> None:
        """Takes over an engine: from `start` on, only the thread touches it.

        Args:
            on_step: called on the engine's thread with each step's stats.
        """
        self._engine = engine
        self._on_step = on_step
        self.num_engines, self.max_rows, self.pace = 1, engine.scheduler.budget.max_rows, Pace()
        self._wake = threading.Condition()
        self._inbox: list[EngineRequest] = []
        self._cancelled: list[int] = []
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"engine-{name}", daemon=True)
        self._loop: asyncio.AbstractEventLoop
        self._on_outcomes: Callable[[Outcomes], None]
        self._on_death: Callable[[], None]

    async def start(self, on_outcomes: Callable[[Outcomes], None], on_death: Callable[[], None]) -> None:
        self._on_outcomes, self._on_death = on_outcomes, on_death
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def submit(self, request: EngineRequest) -> None:
        with self._wake:
            self._inbox.append(request)
            self._wake.notify()

    def cancel(self, key: int) -> None:
        with self._wake:
            self._cancelled.append(key)
            self._wake.notify()

    def num_waiting(self, priority: Priority) -> int:
        with self._wake:  # not while the inbox is on its way into the engine: it would count twice
            arriving = sum(request.priority is priority for request in self._inbox)
            return arriving + self._engine.scheduler.num_waiting(priority)

    @property
    def num_running(self) -> int:
        return self._engine.scheduler.num_running

    @property
    def num_rows(self) -> int:
        return self._engine.num_rows

    def ahead(self, priority: Priority, client: str, work: float) -> Ahead:
        with self._wake:
            arriving = [one.work for one in self._inbox if one.priority is priority and one.client == client]
            queued = self._engine.scheduler.ahead(priority, client, work)
        num = len(arriving)
        return Ahead(queued.work + sum(arriving), queued.num_requests + num, queued.num_own + num)

    async def stop(self, timeout_seconds: float) -> None:
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, timeout_seconds)

    def _run(self) -> None:
        try:
            while self._empty_inbox():
                result = self._engine.step()
                if result.outcomes:
                    self._call(partial(self._on_outcomes, result.outcomes))
                self.pace.note(result.stats)
                self._on_step(result.stats)
        except Exception:
            log.exception("a step failed: every request in flight is refused and the server ends")
            self._call(self._on_death)

    def _empty_inbox(self) -> bool:
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
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            log.debug("the event loop has ended before the engine")
