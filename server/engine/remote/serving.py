"""The engine's end of the socket, in a worker process: commands come in, and after steps reports go out."""

import select
import socket
import time

from attendant.server.engine.engine import Engine
from attendant.server.engine.remote.frames import Frames, framed
from attendant.server.engine.remote.messages import Report
from attendant.server.engine.request import Priority, StepStats

REPORT_SECONDS = 0.05
"""How old a step's stats may become before they are sent without an outcome."""

RECEIVED_BYTES = 1 << 16


def serve_engine(connection: socket.socket, engine: Engine) -> None:
    """Obeys commands until the other end closes the connection.

    One thread does it all: commands are looked for between two steps, and waited for when there is nothing to do.

    Raises:
        Exception: whatever a step raised.
    """
    frames = Frames()
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    stats: list[StepStats] = []
    reported = time.monotonic()
    while True:
        if poll.poll(0 if engine.has_work else None):
            data = connection.recv(RECEIVED_BYTES)
            if not data:
                return
            for commands in frames.feed(data):
                for request in commands.requests:
                    engine.submit(request)
                for key in commands.cancelled:
                    engine.cancel(key)
        if not engine.has_work:
            continue
        result = engine.step()
        stats.append(result.stats)
        now = time.monotonic()
        if result.outcomes or not engine.has_work or now - reported > REPORT_SECONDS:
            waiting = tuple(engine.scheduler.num_waiting(priority) for priority in Priority)
            report = Report(result.outcomes, stats, waiting, engine.scheduler.num_running, engine.num_rows)
            connection.sendall(framed(report))
            stats, reported = [], now
