"""Engines in worker processes, behind one queue: the server's side of it, on the event loop."""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence

from attendant.server.engine.host import Outcomes
from attendant.server.engine.remote.dispatch import Dispatcher
from attendant.server.engine.remote.frames import Frames, framed
from attendant.server.engine.remote.messages import Orders, Report
from attendant.server.engine.remote.serving import RECEIVED_BYTES
from attendant.server.engine.request import EngineRequest, Priority, StepStats
from attendant.server.engine.throughput import Pace

log = logging.getLogger(__name__)

NOTHING = Report([], [], (0,) * len(Priority), 0, 0)


class EngineWorkers:
    """Several engines of one model, an `EngineHost`: each answers at the other end of a socket."""

    def __init__(
        self, connections: Sequence[socket.socket], *, max_rows: int, on_step: Callable[[StepStats], None]
    ) -> None:
        """Takes over connections to workers that are ready.

        Args:
            max_rows: of each worker.
            on_step: called in the event loop with each step's stats.
        """
        self._on_step = on_step
        self._dispatcher = Dispatcher(len(connections), max_rows)
        self._pace = Pace()
        self._workers = [_Worker(connection, self._on_report, self._on_lost) for connection in connections]
        self._stopping = False
        self._on_outcomes: Callable[[Outcomes], None]
        self._on_death: Callable[[], None]

    def start(self, on_outcomes: Callable[[Outcomes], None], on_death: Callable[[], None]) -> None:
        self._on_outcomes, self._on_death = on_outcomes, on_death
        for worker in self._workers:
            worker.start(asyncio.get_running_loop())

    def submit(self, request: EngineRequest) -> None:
        self._send(self._dispatcher.add(request))

    def cancel(self, key: int) -> None:
        worker = self._dispatcher.cancel(key)
        if worker is not None:
            self._workers[worker].cancel(key)

    def num_waiting(self, priority: Priority) -> int:
        here = self._dispatcher.num_waiting if priority is Priority.INTERACTIVE else 0
        return here + sum(worker.report.num_waiting[priority] for worker in self._workers)

    @property
    def num_running(self) -> int:
        return sum(worker.report.num_running for worker in self._workers)

    @property
    def num_rows(self) -> int:
        return sum(worker.report.num_rows for worker in self._workers)

    def expected_seconds(self, num_requests: int) -> float:
        return self._pace.expected_seconds(num_requests) / len(self._workers)

    async def stop(self, timeout_seconds: float) -> None:
        """Hangs up: each worker ends after its step."""
        self._stopping = True
        for worker in self._workers:
            worker.hang_up()

    def _send(self, given: list[tuple[int, EngineRequest]]) -> None:
        for worker, request in given:
            self._workers[worker].submit(request)

    def _on_report(self, report: Report) -> None:
        ended = [key for key, _ in report.outcomes]
        num_interactive = sum(map(self._dispatcher.is_interactive, ended))
        # First of all, so that the worker does not wait.
        self._send(self._dispatcher.ended(ended))
        self._on_outcomes(report.outcomes)
        seconds = 0.0
        for stats in report.stats:
            self._on_step(stats)
            if stats.priority is Priority.INTERACTIVE:
                seconds += sum(stats.phase_seconds.values())
        if seconds:
            self._pace.note(seconds, num_interactive)

    def _on_lost(self) -> None:
        if not self._stopping:
            self._stopping = True
            log.error("a worker process has ended: every request in flight is refused and the server ends")
            self._on_death()


class _Worker:
    """One connection. What is said to the worker in one turn of the event loop is one message."""

    def __init__(
        self, connection: socket.socket, on_report: Callable[[Report], None], on_lost: Callable[[], None]
    ) -> None:
        self.report = NOTHING
        self._connection = connection
        self._on_report = on_report
        self._on_lost = on_lost
        self._frames = Frames()
        self._orders: Orders | None = None
        self._unsent = bytearray()
        self._loop: asyncio.AbstractEventLoop

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._connection.setblocking(False)
        loop.add_reader(self._connection, self._receive)

    def submit(self, request: EngineRequest) -> None:
        self._next_orders().requests.append(request)

    def cancel(self, key: int) -> None:
        self._next_orders().cancelled.append(key)

    def hang_up(self) -> None:
        if self._connection.fileno() >= 0:
            self._loop.remove_reader(self._connection)
            self._loop.remove_writer(self._connection)
            self._connection.close()

    def _next_orders(self) -> Orders:
        if self._orders is None:
            self._orders = Orders()
            self._loop.call_soon(self._send_orders)
        return self._orders

    def _send_orders(self) -> None:
        orders, self._orders = self._orders, None
        if self._connection.fileno() < 0:
            return
        held_up = bool(self._unsent)
        self._unsent += framed(orders)
        if not held_up and not self._write():
            self._loop.add_writer(self._connection, self._write_on)

    def _write_on(self) -> None:
        if self._write():
            self._loop.remove_writer(self._connection)

    def _write(self) -> bool:
        """Sends what the socket takes; returns whether that was all."""
        try:
            del self._unsent[: self._connection.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            # The worker has gone: what it said before that, and that it went, is told by the reading side.
            self._unsent.clear()
        return not self._unsent

    def _receive(self) -> None:
        try:
            data = self._connection.recv(RECEIVED_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        try:
            for report in self._frames.feed(data):
                self.report = report
                self._on_report(report)
        except Exception:
            log.exception("what a worker process said can't be understood")
            data = b""
        if not data:
            self.hang_up()
            self._on_lost()
