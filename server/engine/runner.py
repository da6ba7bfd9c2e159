"""The way into an engine and out of it, for the event loop: who is let in, and who is told what became of whom."""

import asyncio
import itertools
import time
from collections.abc import Callable
from functools import partial

from attendant.runtime.decoding.options import DecodingOptions
from attendant.server.engine.host import EngineHost, Outcomes
from attendant.server.engine.request import EngineRequest, Outcome, Priority, Result
from attendant.server.errors import AttendantError, DeadlineTooShort, Draining, EngineDead, QueueFull

MIN_RETRY_SECONDS = 0.05


class EngineRunner:
    """One model's engine, seen from the event loop that `start` was called from."""

    def __init__(
        self,
        host: EngineHost,
        *,
        max_waiting: int,
        max_bulk: int,
        on_death: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes over a host that has not been started.

        Args:
            max_waiting: interactive requests that may wait; one more is refused at the door.
            max_bulk: bulk requests that may be in, waiting or running; whoever has more waits for room, in turn.
            on_death: called once, after a step has failed and every request was told.
            clock: the engine's own.
        """
        self._host = host
        self._max_waiting = max_waiting
        self._on_death = on_death
        self._clock = clock
        self._keys = itertools.count()
        self._draining = self._dead = False
        self._listeners: dict[int, Callable[[Outcome], None]] = {}
        self._emptied = asyncio.Event()
        # First come, first served, one place at a time: several streams share the room evenly.
        self.bulk_room = asyncio.Semaphore(max_bulk)

    def start(self) -> None:
        """Starts the engine; from the event loop that will await it."""
        self._host.start(self._tell, self._die)

    async def run(self, source_ids: tuple[int, ...], options: DecodingOptions, timeout_seconds: float | None) -> Result:
        """Waits for an interactive request's turn and its end.

        Args:
            timeout_seconds: what is left until the caller's deadline; None: no deadline.

        Raises:
            AttendantError: any other outcome than a result.
            asyncio.CancelledError: the caller went; the request's rows are free within a step.
        """
        self._refuse_at_the_door(timeout_seconds)
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        deadline = None if timeout_seconds is None else self._clock() + timeout_seconds
        key = self._submit(source_ids, options, deadline, Priority.INTERACTIVE, partial(_resolve, future))
        try:
            outcome = await future
        except asyncio.CancelledError:
            self.cancel(key)
            raise
        if isinstance(outcome, AttendantError):
            raise outcome
        return outcome

    def submit_bulk(
        self,
        source_ids: tuple[int, ...],
        options: DecodingOptions,
        deadline: float | None,
        on_outcome: Callable[[Outcome], None],
    ) -> int:
        """Takes in a bulk request, for whose room in `bulk_room` its sender has waited; returns its key.

        Args:
            deadline: on the engine's clock; None: none.
            on_outcome: called once in the event loop, unless the request is cancelled.

        Raises:
            EngineDead, Draining
        """
        self._refuse_if_ending()
        return self._submit(source_ids, options, deadline, Priority.BULK, on_outcome)

    def cancel(self, key: int) -> None:
        """Nobody waits for this request any more: its listener is not called, and its rows are free within a step."""
        if self._listeners.pop(key, None) is not None:
            self._host.cancel(key)
            self._note_if_empty()

    @property
    def num_waiting(self) -> int:
        """Of all priorities."""
        return sum(map(self._host.num_waiting, Priority))

    @property
    def num_running(self) -> int:
        return self._host.num_running

    @property
    def num_rows(self) -> int:
        return self._host.num_rows

    @property
    def is_draining(self) -> bool:
        return self._draining

    def drain(self) -> None:
        """Lets nobody in any more; what is in goes on."""
        self._draining = True

    async def finished(self) -> None:
        """Waits until every request that is in has been answered. For a runner that drains."""
        while self._listeners:
            self._emptied.clear()
            await self._emptied.wait()
            # The callers wake up beside us: let them take their answers.
            await asyncio.sleep(0)

    async def stop(self, timeout_seconds: float = 5.0) -> None:
        """Ends the engine after its step; requests that are still in are told that the server is going."""
        self._draining = True
        await self._host.stop(timeout_seconds)
        self._fail_all(Draining)

    def _submit(
        self,
        source_ids: tuple[int, ...],
        options: DecodingOptions,
        deadline: float | None,
        priority: Priority,
        on_outcome: Callable[[Outcome], None],
    ) -> int:
        request = EngineRequest(
            key=next(self._keys),
            source_ids=source_ids,
            options=options,
            submitted=self._clock(),
            deadline=deadline,
            priority=priority,
        )
        self._listeners[request.key] = on_outcome
        self._host.submit(request)
        return request.key

    def _refuse_if_ending(self) -> None:
        if self._dead:
            raise EngineDead
        if self._draining:
            raise Draining

    def _refuse_at_the_door(self, timeout_seconds: float | None) -> None:
        self._refuse_if_ending()
        num_waiting = self._host.num_waiting(Priority.INTERACTIVE)
        expected = self._host.expected_seconds(num_waiting)
        if num_waiting >= self._max_waiting:
            raise QueueFull(self._max_waiting, max(expected / 2, MIN_RETRY_SECONDS))
        # The estimate is rough: only a deadline that is out of reach by far is refused for it.
        if timeout_seconds is not None and (timeout_seconds <= 0 or 2 * timeout_seconds < expected):
            raise DeadlineTooShort(timeout_seconds, max(expected, MIN_RETRY_SECONDS))

    def _tell(self, outcomes: Outcomes) -> None:
        for key, outcome in outcomes:
            listener = self._listeners.pop(key, None)
            # None: cancelled meanwhile, and nobody listens.
            if listener is not None:
                listener(outcome)
        self._note_if_empty()

    def _note_if_empty(self) -> None:
        if not self._listeners:
            self._emptied.set()

    def _die(self) -> None:
        self._dead = True
        self._fail_all(EngineDead)
        self._on_death()

    def _fail_all(self, error: type[EngineDead | Draining]) -> None:
        self._tell([(key, error()) for key in list(self._listeners)])


def _resolve(future: "asyncio.Future[Outcome]", outcome: Outcome) -> None:
    # Its task may have been cancelled in this very turn of the loop, and not have run since.
    if not future.done():
        future.set_result(outcome)
