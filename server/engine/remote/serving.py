"""The engine's end of the socket, in a worker process: commands come in, and after steps reports go out."""

import os
import select
import socket
import struct
import time

from attendant.server.engine.engine import Engine
from attendant.server.engine.remote.flight_record import FlightRecord
from attendant.server.engine.remote.frames import Frames, framed
from attendant.server.engine.remote.messages import Report
from attendant.server.engine.remote.outbox import Outbox
from attendant.server.engine.request import Priority, StepStats

REPORT_SECONDS = 0.05
"""How old a step's stats may become before they are sent."""

RECEIVED_BYTES = 1 << 16

CREDENTIALS = struct.Struct("3i")
"""Of SO_PEERCRED: process, user and group of who made a socket."""


class StrangeSocket(Exception):
    """A socket that did not come from the process that started this one: nothing of it is read."""


def inherited(descriptor: int) -> socket.socket:
    """The socket to the process that started this one, after making sure that it is one.

    What comes in is unpickled, which lets its sender run anything. A pair of sockets has no name that others could
    connect to, and the kernel says who made it.

    Raises:
        StrangeSocket
    """
    try:
        connection = socket.socket(fileno=descriptor)
    except OSError as error:
        raise StrangeSocket(f"descriptor {descriptor}: {error.strerror}") from None
    try:
        if connection.family != socket.AF_UNIX or connection.getsockname() or connection.getpeername():
            raise StrangeSocket("others can reach this one")
        maker = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        process, user, _ = CREDENTIALS.unpack(maker)
        if (process, user) != (os.getppid(), os.getuid()):
            raise StrangeSocket(f"this one is process {process}'s, of user {user}")
    except OSError as error:
        connection.close()
        raise StrangeSocket(error.strerror) from None
    except StrangeSocket:
        connection.close()
        raise
    return connection


def serve_engine(connection: socket.socket, engine: Engine, record: FlightRecord) -> None:
    """Obeys commands until the other end closes the connection.

    One thread does it all: commands are looked for between two steps, and waited for when there is nothing to do.

    Args:
        record: gets the keys of what is computed.

    Raises:
        Exception: whatever a step raised.
    """
    engine.on_batch = record.note
    frames = Frames()
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    outbox = Outbox()
    stats: list[StepStats] = []
    reported = time.monotonic()
    has_work = engine.has_work
    while True:
        if poll.poll(0 if has_work else None):
            data = connection.recv(RECEIVED_BYTES)
            if not data:
                return
            for commands in frames.feed(data):
                for request in commands.requests:
                    engine.submit(request)
                for key in commands.cancelled:
                    engine.cancel(key)
                if commands.bulk is not None:
                    engine.scheduler.bulk = commands.bulk
            has_work = engine.has_work
        if not has_work:
            continue
        began = time.monotonic()
        result = engine.step()
        has_work = engine.has_work
        stats.append(result.stats)
        now = time.monotonic()
        outbox.add(result.outcomes, result.progress, now)
        # The next round will take about as long as this one.
        is_due = outbox.is_due(engine.scheduler.num_running(result.stats.priority), now, now - began)
        if is_due or not has_work or now - reported > REPORT_SECONDS:
            waiting = tuple(engine.scheduler.num_waiting(priority) for priority in Priority)
            report = Report(*outbox.take(), stats, waiting, engine.num_rows)
            connection.sendall(framed(report))
            stats, reported = [], now
