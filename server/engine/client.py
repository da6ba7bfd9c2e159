"""A model's engines as the event loop uses them: requests are submitted, and each is a future of its outcome."""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from typing import NamedTuple

from attendant.runtime.decoding.hypothesis import Progress
from attendant.server.config import ServerConfig
from attendant.server.engine.admission import Accepted, OverloadControl, Prediction, Source
from attendant.server.engine.pool import WorkerPool
from attendant.server.engine.request import Outcome, Priority, Updates
from attendant.server.engine.shares import FairSemaphore
from attendant.server.errors import AttendantError, Draining, EngineDead

DELIVERED_AT_ONCE = 8
"""Outcomes of heavy and bulk requests that are delivered in one turn of the event loop. Other calls should not wait
until hundreds of answers have been written."""

HEAVY_WEIGHT = 4
"""Bulk outcomes that a heavy one counts as: it wakes a call that makes its answer at once; a stream's queue up."""


class _Waiting(NamedTuple):
    """A caller that waits for an outcome."""

    outcome: asyncio.Future[Outcome]
    accepted: Accepted
    on_progress: Callable[[Progress], None] | None


class EngineClient:
    """One model's engines, used from the event loop in which `start` was awaited.

    Every request is a future of its outcome. Cancelling the future cancels the request, and its rows are free within a
    step.

    Attributes:
        bulk_permits: one is to be acquired before a bulk request is submitted, and released after its outcome, whether
            or not its client reads it. So they are freed as fast as the engine works.
    """

    def __init__(
        self,
        pool: WorkerPool,
        config: ServerConfig,
        *,
        max_bulk: int,
        on_death: Callable[[], None],
        on_prediction: Callable[[Prediction], None] = lambda prediction: None,
    ) -> None:
        """Takes over engines that have not been started.

        Args:
            max_bulk: bulk requests that may be in flight, waiting or running.
            on_death: called once, after the engines have failed for good and every request has ended.
            on_prediction: see OverloadControl.
        """
        self._pool = pool
        self._control = OverloadControl(pool, config, on_prediction)
        self._on_death = on_death
        self._keys = itertools.count()
        self._draining = self._dead = False
        self._in_flight: dict[int, _Waiting] = {}
        self._undelivered: deque[tuple[int, Progress | Outcome]] = deque()
        self._is_delivering = False
        self.bulk_permits = FairSemaphore(max_bulk)

    async def start(self) -> None:
        """Starts the engines. Raises the errors of WorkerPool.start."""
        await self._pool.start(self._deliver, self._die)

    def submit_all(
        self,
        sources: Sequence[Source],
        timeout_seconds: float | None,
        priority: Priority = Priority.INTERACTIVE,
        client: str = "",
        listeners: Sequence[Callable[[Progress], None]] | None = None,
    ) -> list[asyncio.Future[Outcome]]:
        """Submits requests, all of them or none.

        Args:
            sources: at least one, each of no more rows than the engine's budget.
            timeout_seconds: time left until the caller's deadline. If None, there is no deadline.
            priority: interactive or bulk. A permit must have been acquired for each bulk request.
            client: name of the client; clients share the engine.
            listeners: one for each source, called with tokens of its answer as soon as they are certain, until its
                outcome is there. They may come twice, because the requests of an engine that died are decoded again.

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
        now, streams = time.monotonic(), listeners is not None
        all_accepted = self._control.accept(
            self._keys, sources, priority, client, now, timeout_seconds, streams=streams
        )
        loop = asyncio.get_running_loop()
        outcomes: list[asyncio.Future[Outcome]] = []
        for accepted, on_progress in zip(all_accepted, listeners or repeat(None), strict=False):
            key, outcome = accepted.request.key, loop.create_future()
            self._in_flight[key] = _Waiting(outcome, accepted, on_progress)
            outcome.add_done_callback(partial(self._cancel_if_cancelled, key))
            outcomes.append(outcome)
        self._pool.submit([accepted.request for accepted in all_accepted])
        return outcomes

    @property
    def num_waiting(self) -> int:
        """Waiting requests of all priorities."""
        return sum(map(self._pool.num_waiting, Priority))

    @property
    def num_running(self) -> int:
        return self._pool.num_running

    @property
    def num_rows(self) -> int:
        return self._pool.num_rows

    def drain(self) -> None:
        """Refuses new requests; those in flight go on."""
        self._draining = True

    async def finished(self) -> None:
        """Waits, after `drain`, until every request in flight has been answered."""
        while self._in_flight:
            await asyncio.wait([waiting.outcome for waiting in self._in_flight.values()])
            # The callers wake up in the same turn of the event loop: let them take their answers.
            await asyncio.sleep(0)

    def stop(self) -> None:
        """Ends the engines after their step; requests in flight end with Draining."""
        self._draining = True
        self._pool.stop()
        self._end_all(Draining())

    def _deliver(self, updates: Updates) -> None:
        """Delivers updates: to light clients' callers now, to the others some in each turn of the event loop."""
        for key, update in updates:
            waiting = self._in_flight.get(key)
            if waiting is None:  # cancelled
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
            waiting = self._in_flight.get(key)
            is_bulk = waiting is None or waiting.accepted.request.priority is Priority.BULK
            room -= 1 if is_bulk else HEAVY_WEIGHT
            self._deliver_one(key, update)
        self._is_delivering = bool(self._undelivered)
        if self._is_delivering:
            asyncio.get_running_loop().call_soon(self._deliver_some)

    def _end_all(self, error: AttendantError) -> None:
        """Delivers what is undelivered, and this error to all other callers."""
        while self._undelivered:
            self._deliver_one(*self._undelivered.popleft())
        for key in list(self._in_flight):
            self._deliver_one(key, error)

    def _deliver_one(self, key: int, update: Progress | Outcome) -> None:
        if isinstance(update, Progress):
            if (waiting := self._in_flight.get(key)) is not None and waiting.on_progress is not None:
                waiting.on_progress(update)
        elif (waiting := self._in_flight.pop(key, None)) is not None:
            self._control.ended(waiting.accepted, update, time.monotonic())
            if not waiting.outcome.done():
                waiting.outcome.set_result(update)

    def _cancel_if_cancelled(self, key: int, outcome: "asyncio.Future[Outcome]") -> None:
        if outcome.cancelled() and (waiting := self._in_flight.pop(key, None)) is not None:
            self._control.ended(waiting.accepted, None, time.monotonic())
            self._pool.cancel(key)

    def _die(self) -> None:
        self._dead = True
        self._end_all(EngineDead())
        self._on_death()
