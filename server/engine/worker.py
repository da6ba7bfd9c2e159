"""The engine's end of the socket, in a worker process: commands come in, and after steps reports go out.

Every message wakes the server's process, which finds that the decoding has evicted its code and data from the caches.
And callers who are answered together ask again together, so that their next requests are encoded in one call. So
reports of rounds shortly after one another are sent together.
"""

import math
import os
import select
import socket
import struct
import time
from collections.abc import Iterable

from attendant.runtime.decoding.hypothesis import Progress
from attendant.server.engine.engine import Engine
from attendant.server.engine.protocol import FlightRecord, Frames, Report, framed
from attendant.server.engine.request import Outcomes, Priority, Result, StepStats

HELD_PART = 0.2
"""Of the time that a request has taken: its outcome is held no longer, the round that is next included."""

MIN_PART = 3
"""Outcomes leave as soon as they are a third as many as the requests that still run."""

PROGRESS_SECONDS = 0.005
"""Progress is held no longer: a sixth of the time between two messages of a stream. First tokens are not held."""


class Outbox:
    """Outcomes and progress that have not been sent. What leaves, leaves with all the rest."""

    def __init__(self) -> None:
        self._outcomes: Outcomes = []
        self._progress: dict[int, Progress] = {}
        self._send_by = math.inf

    def add(self, outcomes: Outcomes, progress: Iterable[tuple[int, Progress]], now: float) -> None:
        """Takes what a step has ended, and how far it has come with those that stream."""
        for key, more in progress:
            held = self._progress.get(key)
            self._progress[key] = more if held is None else _joined(held, more)
            self._send_by = min(self._send_by, now + (PROGRESS_SECONDS if more.first else 0.0))
        self._outcomes += outcomes
        for _, outcome in outcomes:
            # Nothing of an error's kind follows that it could wait for.
            patience = HELD_PART * outcome.stats.total if isinstance(outcome, Result) else 0.0
            self._send_by = min(self._send_by, now + patience)

    def is_due(self, num_running: int, now: float, round_seconds: float) -> bool:
        """Whether what is held should be sent now, and not after the next round.

        Args:
            num_running: requests that may end next.
            round_seconds: how long the next round will take.
        """
        is_late = now + round_seconds >= self._send_by
        return is_late or (bool(self._outcomes) and len(self._outcomes) * MIN_PART >= num_running)

    def take(self) -> tuple[Outcomes, list[tuple[int, Progress]]]:
        """What is to be sent: outcomes in the order in which they came, progress once for each request."""
        outcomes, progress = self._outcomes, list(self._progress.items())
        self._outcomes, self._progress, self._send_by = [], {}, math.inf
        return outcomes, progress


def _joined(held: Progress, later: Progress) -> Progress:
    """Both together; where they overlap, the later one counts."""
    return Progress(held.first, (*held.token_ids[: later.first - held.first], *later.token_ids))


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
