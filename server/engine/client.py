"""A model's engines as the event loop uses them: requests are submitted, and each is a future of its outcome."""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from attendant.runtime.decoding.hypothesis import Progress
from attendant.runtime.decoding.options import DecodingOptions
from attendant.server.engine.admission import Accepted, Asked, OverloadControl, OverloadLimits, Prediction
from attendant.server.engine.pool import WorkerPool
from attendant.server.engine.request import Outcome, Priority, Updates
from attendant.server.engine.shares import FairSemaphore
from attendant.server.errors import AttendantError, Draining, EngineDead

DELIVERED_AT_ONCE = 8
"""Bulk outcomes that are delivered in one turn of the event loop. The calls of others should not wait for hundreds."""

HEAVY_WEIGHT = 4
"""A heavy outcome counts as so many: each wakes a call that makes its answer then, while those of a stream queue up."""


class _Waiting(NamedTuple):
    """A caller who waits for an outcome."""

    outcome: asyncio.Future[Outcome]
    accepted: Accepted
    on_progress: Callable[[Progress], None] | None


class EngineClient:
    """One model's engines, seen from the event loop that `start` was awaited in.

    Every request is a future of its outcome, whoever asked: who has one request awaits it, who has many adds a
    callback. Cancelling the future cancels the request, and its rows are free within a step.

    Attributes:
        bulk_permits: one is to be acquired before a bulk request is submitted, and released once its outcome is there,
            whether or not its client reads it. So they come free as fast as the engine works.
    """

    def __init__(
        self,
        pool: WorkerPool,
        *,
        limits: OverloadLimits,
        max_bulk: int,
        on_death: Callable[[], None],
        on_available: Callable[[bool], None] = lambda available: None,
        on_prediction: Callable[[Prediction], None] = lambda prediction: None,
    ) -> None:
        """Takes over engines that have not been started.

        Args:
            limits: of what is accepted.
            max_bulk: bulk requests that may be in, waiting or running.
            on_death: called once, after the engines have failed for good and every request has ended.
            on_available: see WorkerPool.start.
            on_prediction: called with what was expected of an interactive request, when it has been answered or given
                up.
        """
        self._pool = pool
        self._control = OverloadControl(pool, limits, on_prediction)
        self._on_death = on_death
        self._on_available = on_available
        self._keys = itertools.count()
        self._draining = self._dead = False
        self._in: dict[int, _Waiting] = {}
        self._undelivered: deque[tuple[int, Progress | Outcome]] = deque()
        self._is_delivering = False
        self.bulk_permits = FairSemaphore(max_bulk)

    async def start(self) -> None:
        """Starts the engines; from the event loop that will await them.

        Raises:
            UserError, RuntimeError: see WorkerPool.start.
        """
        await self._pool.start(self._deliver, self._die, self._on_available)

    def submit(
        self,
        source_ids: tuple[int, ...],
        options: DecodingOptions,
        timeout_seconds: float | None,
        priority: Priority = Priority.INTERACTIVE,
        client: str = "",
        on_progress: Callable[[Progress], None] | None = None,
    ) -> asyncio.Future[Outcome]:
        """Takes a request in: `submit_all` of one."""
        return self.submit_all([(source_ids, options)], timeout_seconds, priority, client, on_progress)[0]

    def submit_all(
        self,
        asked: Sequence[Asked],
        timeout_seconds: float | None,
        priority: Priority = Priority.INTERACTIVE,
        client: str = "",
        on_progress: Callable[[Progress], None] | None = None,
    ) -> list[asyncio.Future[Outcome]]:
        """Takes requests in, all of them or none.

        Args:
            asked: at least one, each of no more rows than the engine's budget.
            timeout_seconds: what is left until the caller's deadline; None: no deadline.
            priority: interactive or bulk; whoever submits a bulk request has acquired a permit for it.
            client: who asks; clients share the engine.
            on_progress: called with tokens of the answer as soon as they are certain, until the outcome is there. They
                may come twice: an engine that died is asked again from the beginning.

        Returns:
            A future of each outcome. It never holds an exception: an error is a value, like a result.

        Raises:
            EngineDead, Draining
            QueueFull, WaitTooLong, ClientLimit, DeadlineTooShort: of interactive requests.
        """
        if self._dead:
            raise EngineDead
        if self._draining:
            raise Draining
        now, streams = time.monotonic(), on_progress is not None
        accepted = self._control.accept(self._keys, asked, priority, client, now, timeout_seconds, streams=streams)
        loop = asyncio.get_running_loop()
        outcomes: list[asyncio.Future[Outcome]] = []
        for one in accepted:
            key, outcome = one.request.key, loop.create_future()
            self._in[key] = _Waiting(outcome, one, on_progress)
            outcome.add_done_callback(partial(self._cancel_if_cancelled, key))
            outcomes.append(outcome)
        self._pool.submit([one.request for one in accepted])
        return outcomes

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
        while self._in:
            await asyncio.wait([waiting.outcome for waiting in self._in.values()])
            # The callers wake up beside us: let them take their answers.
            await asyncio.sleep(0)

    def stop(self) -> None:
        """Ends the engines after their step; requests that are still in end with Draining."""
        self._draining = True
        self._pool.stop()
        self._end_all(Draining())

    def _deliver(self, updates: Updates) -> None:
        """Tells interactive callers now, and the others after them, some in each turn of the event loop."""
        for key, update in updates:
            waiting = self._in.get(key)
            if waiting is None:  # cancelled meanwhile, and nobody waits
                continue
            if waiting.accepted.request.priority is Priority.INTERACTIVE:
                self._deliver_one(key, update)
            else:
                self._undelivered.append((key, update))
        if self._undelivered and not self._is_delivering:
            self._deliver_some()

    def _deliver_some(self) -> None:
        room = DELIVERED_AT_ONCE
        while self._undelivered and room > 0:
            key, update = self._undelivered.popleft()
            waiting = self._in.get(key)
            is_bulk = waiting is None or waiting.accepted.request.priority is Priority.BULK
            room -= 1 if is_bulk else HEAVY_WEIGHT
            self._deliver_one(key, update)
        self._is_delivering = bool(self._undelivered)
        if self._is_delivering:
            asyncio.get_running_loop().call_soon(self._deliver_some)

    def _end_all(self, error: AttendantError) -> None:
        """Delivers what is undelivered, and this error to all others."""
        while self._undelivered:
            self._deliver_one(*self._undelivered.popleft())
        for key in list(self._in):
            self._deliver_one(key, error)

    def _deliver_one(self, key: int, update: Progress | Outcome) -> None:
        if isinstance(update, Progress):
            if (waiting := self._in.get(key)) is not None and waiting.on_progress is not None:
                waiting.on_progress(update)
        elif (waiting := self._in.pop(key, None)) is not None:
            self._control.ended(waiting.accepted, update, time.monotonic())
            if not waiting.outcome.done():
                waiting.outcome.set_result(update)

    def _cancel_if_cancelled(self, key: int, outcome: "asyncio.Future[Outcome]") -> None:
        if outcome.cancelled() and (waiting := self._in.pop(key, None)) is not None:
            self._control.ended(waiting.accepted, None, time.monotonic())
            self._pool.cancel(key)

    def _die(self) -> None:
        self._dead = True
        self._end_all(EngineDead())
        self._on_death()
