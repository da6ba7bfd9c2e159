"""Supervision of worker processes: one slot per worker, its silences, restarts after crashes, and the suspects.

A request that ends an engine is decoded again, alone, so that it can harm no other. Decoding has no side effects, and
its result does not depend on the neighbours, so a second time gives the same answer. A request that ends the engine
alone as well is poisoned. Finding it takes two deaths, however many were suspected.
"""

import asyncio
import socket
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.errors import UserError
from attendant.server.engine.estimates import RoundBound
from attendant.server.engine.protocol import FlightRecord, Link, Ready, Report
from attendant.server.engine.request import BulkRoom, EngineRequest, Outcomes, Priority
from attendant.server.polling import until

WINDOW_SECONDS = 600.0
FIRST_DELAY_SECONDS = 0.5
MAX_DELAY_SECONDS = 30.0


class Restarts:
    """The first one within a window follows at once, each further one after twice the time."""

    def __init__(self, max_restarts: int) -> None:
        """`max_restarts`: within WINDOW_SECONDS."""
        self._max = max_restarts
        self._times: deque[float] = deque()

    def delay(self, now: float) -> float | None:
        """A worker has died: the seconds until another one is started; None: too many have."""
        while self._times and self._times[0] <= now - WINDOW_SECONDS:
            self._times.popleft()
        if len(self._times) >= self._max:
            return None
        self._times.append(now)
        earlier = len(self._times) - 1
        return min(FIRST_DELAY_SECONDS * 2 ** (earlier - 1), MAX_DELAY_SECONDS) if earlier else 0.0


MAX_REMEMBERED = 1024


class Quarantine:
    """The suspects of one worker, one of which at most is in it."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[int, EngineRequest] = OrderedDict()
        self._alone: EngineRequest | None = None

    def __len__(self) -> int:
        """Suspects that have not been answered."""
        return len(self._waiting) + (self._alone is not None)

    def num_waiting(self, priority: Priority) -> int:
        """Of those, the ones that are not in the worker."""
        return sum(request.priority is priority for request in self._waiting.values())

    def add(self, suspects: Iterable[EngineRequest]) -> None:
        for request in sorted(suspects, key=lambda one: (one.priority, one.key)):
            self._waiting[request.key] = request

    def next(self) -> EngineRequest | None:
        """The suspect before has been answered; returns the next one, which is to be decoded alone."""
        self._alone = self._waiting.popitem(last=False)[1] if self._waiting else None
        return self._alone

    def cancel(self, key: int) -> bool:
        """Nobody waits for it any more; False: it does not wait here."""
        return self._waiting.pop(key, None) is not None

    def died(self) -> EngineRequest | None:
        """The worker has died; returns the request that ended it alone, if one was being tried."""
        poisoned, self._alone = self._alone, None
        return poisoned


class Poisoned:
    """What poisoned requests asked for: whoever asks the same again is not tried."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[tuple[int, ...], DecodingOptions], None] = OrderedDict()

    def add(self, request: EngineRequest) -> None:
        self._known[request.source_ids, request.options] = None
        if len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)

    def __contains__(self, request: EngineRequest) -> bool:
        # Almost always there is none, and requests need not be hashed.
        return bool(self._known) and (request.source_ids, request.options) in self._known


class Silence:
    """How long nothing was heard of a worker, counted in the watchdog's ticks.

    A tick that comes late says that this process was held up itself (stopped, or the whole machine was). Nothing could
    be heard then, so that time does not count.
    """

    def __init__(self, tick_seconds: float) -> None:
        self._tick = tick_seconds
        self.heard()

    def heard(self) -> None:
        # It may have been at any time between two ticks.
        self.seconds = -self._tick

    def tick(self, elapsed_seconds: float) -> None:
        self.seconds += min(elapsed_seconds, 2 * self._tick)


class Worker(Protocol):
    """A process that was told to load its bundle, and says at the other end of the connection what became of it."""

    @property
    def connection(self) -> socket.socket: ...

    @property
    def record(self) -> FlightRecord: ...

    def kill(self) -> None:
        """Ends it at once, whatever it does, even if it is stopped."""

    def ending(self) -> str:
        """How it ended, for the log; empty while it runs."""


NOTHING = Report([], [], [], (0,) * len(Priority), 0)


class WorkerLost(Exception):
    """The process ended before it was ready."""


class Slot:
    """One worker of a pool.

    Attributes:
        number: in the pool.
        report: the worker's latest; empty while there is none.
        given: what the worker has, by key.
        quarantine: suspects that only this slot's worker is to decode.
        is_loading: it has a worker that is not ready yet.
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
        self.report = NOTHING
        self.given: dict[int, EngineRequest] = {}
        self.quarantine = Quarantine()
        self.is_loading = False
        self._bound = bound
        self._silence = Silence(tick_seconds)
        self._on_report = on_report
        self._on_lost = on_lost
        self._cancelled: set[int] = set()
        self._size = 0
        self._worker: Worker | None = None
        self._link: Link | None = None

    @property
    def num_running(self) -> int:
        """Requests that have rows in the worker, or are on their way to it."""
        return len(self.given) - sum(self.report.num_waiting)

    async def fill(self, worker: Worker) -> Ready:
        """Takes over a worker that loads, and waits until it is ready.

        Raises:
            UserError: it refuses its bundle.
            WorkerLost
        """
        self._worker, self.is_loading = worker, True
        self._silence.heard()
        make_link = partial(Link, self._on_message, partial(self._on_lost, self))
        _, self._link = await asyncio.get_running_loop().create_unix_connection(make_link, sock=worker.connection)
        answer = await self._link.first
        self.is_loading = False
        if isinstance(answer, UserError):
            raise answer
        if not isinstance(answer, Ready):
            raise WorkerLost
        self._bound.note(answer.warm_up_size, answer.warm_up_seconds)
        return answer

    def send(self, request: EngineRequest) -> None:
        assert self._link is not None
        if not self.given:
            self._silence.heard()
        self.given[request.key] = request
        self._size += size_of(request)
        self._link.next_commands().requests.append(request)

    def limit_bulk(self, room: BulkRoom) -> None:
        """Tells the worker what it may do for bulk requests from now on; one request it always may run."""
        if self._link is not None:
            self._link.next_commands().bulk = room

    def cancel(self, key: int) -> bool:
        """Tells the worker that nobody waits for a request any more; False: it has no such request."""
        if key not in self.given or self._link is None:
            return False
        self._cancelled.add(key)
        self._link.next_commands().cancelled.append(key)
        return True

    def ended(self, outcomes: Outcomes) -> list[EngineRequest]:
        """Takes out what has ended, and returns it."""
        requests = [self.given.pop(key) for key, _ in outcomes]
        self._size -= sum(map(size_of, requests))
        if self._cancelled:
            self._cancelled.difference_update(request.key for request in requests)
        return requests

    def empty(self) -> tuple[list[EngineRequest], list[EngineRequest]]:
        """The worker is gone: takes out what somebody still waits for: what it was computing, and the rest."""
        assert self._worker is not None
        computed = self._worker.record.read()
        left = [request for key, request in self.given.items() if key not in self._cancelled]
        self._forget()
        return [one for one in left if one.key in computed], [one for one in left if one.key not in computed]

    def clear(self) -> None:
        """There will be no worker for what is here."""
        self._forget()
        self.quarantine = Quarantine()

    def tick(self, elapsed_seconds: float) -> float:
        """Time has passed; returns how long the worker has said nothing, while it should have."""
        if not self.given and not self.is_loading:
            return 0.0
        self._silence.tick(elapsed_seconds)
        return self._silence.seconds

    @property
    def max_silence(self) -> float:
        """The longest silence, in seconds, that is not a hang, with what the worker has been given."""
        return self._bound.seconds(self._size)

    def hang_up(self) -> None:
        """The worker ends after the step under way."""
        if self._link is not None:
            self._link.hang_up()

    def kill(self) -> None:
        if self._worker is not None:
            self._worker.kill()

    async def ending(self, patience_seconds: float) -> str:
        """How a worker that hung up ended, once that is known."""
        assert self._worker is not None
        await until(self._worker.ending, patience_seconds)
        return self._worker.ending()

    def _forget(self) -> None:
        self.given, self._cancelled, self._size, self.report = {}, set(), 0, NOTHING

    def _on_message(self, report: Report) -> None:
        self._silence.heard()
        self.report = report
        if rounds := [sum(stats.phase_seconds.values()) for stats in report.stats]:
            self._bound.note(self._size, max(rounds))
        self._on_report(self, report)


def size_of(request: EngineRequest) -> int:
    """About how much a request adds to a round: the rows that are stepped, the positions that are encoded."""
    return request.max_rows + len(request.source_ids)
