"""The place of one worker: the process that fills it now, what it has been given, and how long it has said nothing."""

import asyncio
from collections.abc import Callable
from functools import partial

from attendant.runtime.errors import UserError
from attendant.server.engine.remote.link import Link
from attendant.server.engine.remote.messages import Ready, Report
from attendant.server.engine.remote.quarantine import Quarantine
from attendant.server.engine.remote.watchdog import RoundBound, Silence
from attendant.server.engine.remote.worker import Worker
from attendant.server.engine.request import BulkRoom, EngineRequest, Outcomes, Priority
from attendant.server.polling import until

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
