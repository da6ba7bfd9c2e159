"""Engines in worker processes, behind one queue: the server's end of the sockets, on the event loop."""

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from attendant.server.engine.queueing.fair_queue import Ahead
from attendant.server.engine.remote.dispatch import Dispatcher
from attendant.server.engine.remote.frames import Frames, framed
from attendant.server.engine.remote.messages import Commands, Report
from attendant.server.engine.request import EngineRequest, Outcomes, Priority, StepStats, out_of_time
from attendant.server.engine.throughput import Pace

log = logging.getLogger(__name__)


class WorkerPool:
    """Several engines of one model, an `EngineHost`: each answers at the other end of a socket."""

    def __init__(
        self,
        connections: Sequence[socket.socket],
        *,
        max_rows: int,
        on_step: Callable[[StepStats], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes over connections to workers that are ready.

        Args:
            max_rows: of each worker.
            on_step: called in the event loop with each step's stats.
            clock: the engines' own.
        """
        self.num_engines, self.max_rows, self.pace = len(connections), max_rows, Pace()
        self._connections = connections
        self._on_step = on_step
        self._clock = clock
        self._dispatcher = Dispatcher(len(connections), max_rows)
        self._links: list[_Link] = []
        self._stopping = False
        self._on_outcomes: Callable[[Outcomes], None]
        self._on_death: Callable[[], None]

    async def start(self, on_outcomes: Callable[[Outcomes], None], on_death: Callable[[], None]) -> None:
        self._on_outcomes, self._on_death = on_outcomes, on_death
        make_link = partial(_Link, self._on_report, self._on_lost)
        for connection in self._connections:
            _, link = await asyncio.get_running_loop().create_unix_connection(make_link, sock=connection)
            self._links.append(link)

    def submit(self, request: EngineRequest) -> None:
        self._send(self._dispatcher.add(request))

    def cancel(self, key: int) -> None:
        worker = self._dispatcher.cancel(key)
        if worker is not None:
            self._links[worker].next_commands().cancelled.append(key)

    def num_waiting(self, priority: Priority) -> int:
        return self._dispatcher.num_waiting(priority) + sum(link.report.num_waiting[priority] for link in self._links)

    @property
    def num_running(self) -> int:
        return sum(link.report.num_running for link in self._links)

    @property
    def num_rows(self) -> int:
        return sum(link.report.num_rows for link in self._links)

    def ahead(self, priority: Priority, client: str, work: float) -> Ahead:
        return self._dispatcher.ahead(priority, client, work)

    async def stop(self, timeout_seconds: float) -> None:
        """Hangs up: each worker ends after its step."""
        self._stopping = True
        for link in self._links:
            link.hang_up()

    def _send(self, given: Iterable[tuple[int, EngineRequest]]) -> None:
        for worker, request in given:
            self._links[worker].next_commands().requests.append(request)

    def _on_report(self, report: Report) -> None:
        now = self._clock()
        missed = [(request.key, out_of_time(request, now)) for request in self._dispatcher.missed(now)]
        # Before anything else, so that the worker does not wait.
        self._send(self._dispatcher.ended([key for key, _ in report.outcomes]))
        self._on_outcomes([*report.outcomes, *missed])
        for stats in report.stats:
            self.pace.note(stats)
            self._on_step(stats)

    def _on_lost(self) -> None:
        if not self._stopping:
            self._stopping = True
            log.error("a worker process has ended: every request in flight is refused and the server ends")
            self._on_death()


class _Link(asyncio.Protocol):
    """The connection to one worker. Commands of one turn of the event loop are sent as one message.

    Attributes:
        report: the worker's latest.
    """

    def __init__(self, on_report: Callable[[Report], None], on_lost: Callable[[], None]) -> None:
        self.report = Report([], [], (0,) * len(Priority), 0, 0)
        self._on_report = on_report
        self._on_lost = on_lost
        self._frames = Frames()
        self._commands: Commands | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def next_commands(self) -> Commands:
        """Those that are sent next, to be added to."""
        if self._commands is None:
            self._commands = Commands()
            asyncio.get_running_loop().call_soon(self._send_commands)
        return self._commands

    def hang_up(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            for report in self._frames.feed(data):
                self.report = report
                self._on_report(report)
        except Exception:
            log.exception("what a worker process said can't be understood")
            self.hang_up()

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_lost()

    def _send_commands(self) -> None:
        commands, self._commands = self._commands, None
        # To a worker that has gone, nothing is sent; that it went is told by `connection_lost`.
        if not self._transport.is_closing():
            self._transport.write(framed(commands))
