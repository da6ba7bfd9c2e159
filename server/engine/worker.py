"""The engine's end of the socket, in a worker process: commands come in, and after rounds reports go out.

Every report wakes the server's process, which finds that the decoding has evicted its code and data from the caches.
And callers who are answered together ask again together, so that their next requests are encoded in one call. So the
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
"""An outcome is held for at most this part of the time that its request has taken, the next round included."""

MIN_PART = 3
"""Outcomes are sent as soon as they number a third of the requests that still run."""

PROGRESS_SECONDS = 0.005
"""Progress is held no longer: a sixth of the time between two messages of a stream. First tokens are not held."""

REPORT_SECONDS = 0.05
"""Greatest age of a round's stats when they are sent."""

RECEIVED_BYTES = 1 << 16

MESSAGE_BYTES = 1 << 20
"""Outcomes with arrays of more than this are sent in several messages, because the server reads a message at once."""

CREDENTIALS = struct.Struct("3i")
"""SO_PEERCRED: process, user and group that made a socket."""


class Outbox:
    """Outcomes and progress that have not been sent. All of them are sent together. Pure."""

    def __init__(self) -> None:
        self._outcomes: Outcomes = []
        self._progress: dict[int, Progress] = {}
        self._send_by = math.inf

    def add(self, outcomes: Outcomes, progress: Iterable[tuple[int, Progress]], now: float) -> None:
        """Adds the outcomes of a round, and the progress of the requests that stream."""
        for key, later in progress:
            held = self._progress.get(key, later)
            # Where they overlap, the later one counts.
            self._progress[key] = Progress(held.first, (*held.token_ids[: later.first - held.first], *later.token_ids))
            self._send_by = min(self._send_by, now + (PROGRESS_SECONDS if later.first else 0.0))
        self._outcomes += outcomes
        for _, outcome in outcomes:
            # Errors are sent at once.
            patience = HELD_PART * outcome.stats.total if isinstance(outcome, Result) else 0.0
            self._send_by = min(self._send_by, now + patience)

    def is_due(self, num_running: int, now: float, round_seconds: float) -> bool:
        """Returns whether to send now, and not after the next round.

        Args:
            num_running: requests that may end next.
            round_seconds: expected duration of the next round.
        """
        is_late = now + round_seconds >= self._send_by
        return is_late or (bool(self._outcomes) and len(self._outcomes) * MIN_PART >= num_running)

    def take(self) -> tuple[Outcomes, list[tuple[int, Progress]]]:
        """Removes and returns everything: outcomes in order, and progress once for each request."""
        outcomes, progress = self._outcomes, list(self._progress.items())
        self._outcomes, self._progress, self._send_by = [], {}, math.inf
        return outcomes, progress


def in_messages(outcomes: Outcomes) -> list[Outcomes]:
    """Divides outcomes, in order, into messages of about MESSAGE_BYTES at most; returns at least one."""
    messages: list[Outcomes] = [[]]
    num_bytes = 0
    for key, outcome in outcomes:
        if num_bytes > MESSAGE_BYTES:
            messages.append([])
            num_bytes = 0
        messages[-1].append((key, outcome))
        if isinstance(outcome, Result):
            num_bytes += sum(each.attention.nbytes for each in outcome.hypotheses if each.attention is not None)
            num_bytes += sum(search.num_bytes for search in outcome.trace or ())
    return messages


def serve_engine(connection: socket.socket, engine: Engine, record: FlightRecord) -> None:
    """Executes commands until the other end closes the connection. Raises the errors of a step.

    One thread does everything: it looks for commands between two rounds, and waits for them when there is no work.

    Args:
        record: gets the keys of the requests that are computed.
    """
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
                    engine.scheduler.limit_bulk(commands.bulk)
            has_work = engine.has_work
        if not has_work:
            continue
        began = time.monotonic()
        result = engine.step(record.note)
        has_work = engine.has_work
        stats.append(result.stats)
        now = time.monotonic()
        outbox.add(result.outcomes, result.progress, now)
        # The next round will take about as long as this one.
        is_due = outbox.is_due(engine.scheduler.num_running(result.stats.priority), now, now - began)
        if is_due or not has_work or now - reported > REPORT_SECONDS:
            waiting = tuple(engine.scheduler.num_waiting(priority) for priority in Priority)
            num_rows = max(engine.num_rows, *(each.num_rows for each in stats))
            outcomes, progress = outbox.take()
            *parts, last = in_messages(outcomes)
            for part in parts:
                connection.sendall(framed(Report(part, [], [], waiting, num_rows)))
            connection.sendall(framed(Report(last, progress, stats, waiting, num_rows)))
            stats, reported = [], now


class StrangeSocket(Exception):
    """A socket that did not come from the process that started this one: nothing is read from it."""


def inherited(descriptor: int) -> socket.socket:
    """Returns the socket to the process that started this one, after making sure that it is one.

    Messages are unpickled, which lets their sender run any code. A pair of sockets has no name that others could
    connect to, and the kernel says which process made it.

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
    except (OSError, StrangeSocket) as error:
        connection.close()
        if isinstance(error, OSError):
            raise StrangeSocket(error.strerror) from None
        raise
    return connection
