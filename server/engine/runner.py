"""The way into an engine and out of it, for the event loop: who is let in, and how each caller gets its outcome."""

import asyncio
import itertools
import time
from collections.abc import Callable
from functools import partial

from attendant.runtime.decoding.options import DecodingOptions
from attendant.server.engine.remote.worker_pool import WorkerPool
from attendant.server.engine.request import EngineRequest, Outcome, Outcomes, Priority
from attendant.server.errors import DeadlineTooShort, Draining, EngineDead, QueueFull

MIN_RETRY_SECONDS = 0.05


class EngineRunner:
    """One model's engines, seen from the event loop that `start` was awaited in.

    Every request is a future of its outcome, whoever asked: who has one request awaits it, who has many adds a
    callback. Cancelling the future cancels the request, and its rows are free within a step.

    Attributes:
        bulk_room: room for bulk requests; to be acquired before one is submitted, and released when its answer has been
            delivered. First come, first served, so that several streams share it evenly.
    """

    def __init__(
        self,
        pool: WorkerPool,
        *,
        max_waiting: int,
        max_bulk: int,
        on_death: Callable[[], None],
        on_available: Callable[[bool], None] = lambda available: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes over engines that have not been started.

        Args:
            max_waiting: interactive requests that may wait; one more is refused.
            max_bulk: bulk requests that may be in, waiting or running.
            on_death: called once, after the engines have failed for good and every request was told.
            on_available: see WorkerPool.start.
            clock: the engines' own.
        """
        self._pool = pool
        self._max_waiting = max_waiting
        self._on_death = on_death
        self._on_available = on_available
        self._clock = clock
        self._keys = itertools.count()
        self._draining = self._dead = False
        self._outcomes: dict[int, asyncio.Future[Outcome]] = {}
        self.bulk_room = asyncio.Semaphore(max_bulk)

    async def start(self) -> None:
        """Starts the engines; from the event loop that will await them.

        Raises:
            UserError, RuntimeError: see WorkerPool.start.
        """
        await self._pool.start(self._tell, self._die, self._on_available)

    def submit(
        self,
        source_ids: tuple[int, ...],
        options: DecodingOptions,
        timeout_seconds: float | None,
        priority: Priority = Priority.INTERACTIVE,
    ) -> asyncio.Future[Outcome]:
        """Takes a request in.

        Args:
            options: of no more rows than the engine's budget.
            timeout_seconds: what is left until the caller's deadline; None: no deadline.
            priority: whoever submits a bulk request has acquired `bulk_room` for it.

        Returns:
            A future of the outcome. It never holds an exception: an error is a value, like a result.

        Raises:
            EngineDead, Draining
            QueueFull, DeadlineTooShort: of an interactive request.
        """
        if self._dead:
            raise EngineDead
        if self._draining:
            raise Draining
        if priority is Priority.INTERACTIVE:
            self._refuse_if_overloaded(timeout_seconds)
        now = self._clock()
        deadline = None if timeout_seconds is None else now + timeout_seconds
        request = EngineRequest(next(self._keys), source_ids, options, now, deadline, priority)
        outcome = self._outcomes[request.key] = asyncio.get_running_loop().create_future()
        outcome.add_done_callback(partial(self._cancel_if_cancelled, request.key))
        self._pool.submit(request)
        return outcome

    @property
    def num_waiting(self) -> int:
        """Of all priorities."""
        return sum(map(self._pool.num_waiting, Priority))

    @property
    def num_running(self) -> int:
        return self._pool.num_running

    @property
    def num_rows(self) -> int:
        return self._pool.num_rows

    def drain(self) -> None:
        """Lets nobody in any more; what is in goes on."""
        self._draining = True

    async def finished(self) -> None:
        """Waits until every request that is in has been answered. For a runner that drains."""
        while self._outcomes:
            await asyncio.wait(self._outcomes.values())
            # The callers wake up beside us: let them take their answers.
            await asyncio.sleep(0)

    def stop(self) -> None:
        """Ends the engines after their step; requests that are still in are told that the server is going."""
        self._draining = True
        self._pool.stop()
        self._tell([(key, Draining()) for key in self._outcomes])

    def _refuse_if_overloaded(self, timeout_seconds: float | None) -> None:
        num_waiting = self._pool.num_waiting(Priority.INTERACTIVE)
        expected = self._pool.expected_seconds(num_waiting)
        if num_waiting >= self._max_waiting:
            raise QueueFull(self._max_waiting, max(expected / 2, MIN_RETRY_SECONDS))
        # The estimate is rough: only a deadline that is out of reach by far is refused for it.
        if timeout_seconds is not None and (timeout_seconds <= 0 or 2 * timeout_seconds < expected):
            raise DeadlineTooShort(timeout_seconds, max(expected, MIN_RETRY_SECONDS))

    def _tell(self, outcomes: Outcomes) -> None:
        for key, outcome in outcomes:
            future = self._outcomes.pop(key, None)
            # None, or done: cancelled meanwhile, and nobody waits.
            if future is not None and not future.done():
                future.set_result(outcome)

    def _cancel_if_cancelled(self, key: int, outcome: "asyncio.Future[Outcome]") -> None:
        if outcome.cancelled() and self._outcomes.pop(key, None) is not None:
            self._pool.cancel(key)

    def _die(self) -> None:
        self._dead = True
        self._tell([(key, EngineDead()) for key in self._outcomes])
        self._on_death()
