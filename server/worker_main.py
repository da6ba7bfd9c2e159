"""A worker process: loads and checks one bundle, reports that, and decodes until its connection is closed.

Or it becomes the parent of workers that share its memory (`forked`). It has no gRPC, no metrics and no signals of its
own, and ends with the sockets that it was given.
"""

import logging
import os
import socket
import struct
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from attendant.runtime.command import exit_command
from attendant.runtime.errors import UserError
from attendant.server.config import ServerConfig
from attendant.server.engine.engine import serve_engine
from attendant.server.engine.loading import load_engine, open_within_limits
from attendant.server.engine.messages import FlightRecord, framed, receive_message
from attendant.server.engine.processes import WORKER_OOM_SCORE, forked, receive_place, set_oom_score
from attendant.server.logs import configure_logging, log_python_errors

log = logging.getLogger(__name__)

ENGINE_DIED = 1
REFUSED = 2

NOWHERE = "/proc/self/fdinfo"
"""The working directory if no temporary folder can be made, on a read-only or full disk: its entries are numbers."""

NICENESS = 5
"""The server's own process, which refuses requests and delivers answers, goes first where processors are scarce."""

CREDENTIALS = struct.Struct("3i")  # SO_PEERCRED: process, user and group that made a socket.


def main(descriptor: int) -> int:
    """Runs a worker; returns its exit status.

    Args:
        descriptor: of the socket on which the server sends the configuration and requests workers.
    """
    os.nice(NICENESS)
    oom_score = set_oom_score(WORKER_OOM_SCORE)
    try:
        control = inherited(descriptor)
    except StrangeSocket as error:
        print(f"worker: only a server starts a worker, and gives it a socket: {error}", file=sys.stderr)
        return REFUSED
    with control:
        try:
            _live(control, oom_score)
        except (BrokenPipeError, ConnectionResetError):
            log.debug("the server has gone")
        except Exception:
            log.exception("this worker has failed, and ends")
            return ENGINE_DIED
    return 0


def _live(control: socket.socket, oom_score: str) -> None:
    config = receive_message(control)
    if not isinstance(config, ServerConfig):
        return
    configure_logging(config.log_level, config.log_format, config.log_texts)
    log_python_errors()
    try:
        (path,) = config.bundles
        bundle = replace(open_within_limits(path, config), path=path.absolute())
        leave_working_directory()
        engine, ready = load_engine(bundle, config)
    except UserError as error:
        while (place := receive_place(control)) is not None:
            with place.connection:
                place.connection.sendall(framed(UserError(error.summary, error.differences)))
        return
    place = forked(control, oom_score) if config.workers > 1 else receive_place(control)
    if place is None:
        return
    record = FlightRecord(place.record)
    os.close(place.record)
    with place.connection:
        place.connection.sendall(framed(ready))
        serve_engine(place.connection, engine, record)


class StrangeSocket(Exception):
    """A socket that did not come from the process that started this one: nothing is read from it."""


def inherited(descriptor: int) -> socket.socket:
    """Returns the socket to the process that started this one, after making sure that it is one.

    Messages are unpickled, which lets their sender run any code. A pair of sockets has no name that others could
    connect to, and the kernel returns the process that made it. Raises StrangeSocket.
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


def leave_working_directory() -> None:
    """Moves this process into a folder that has been removed, so that no relative name leads to a file.

    ONNX Runtime resolves the names in a graph against the working directory, where an operator may keep secrets.
    """
    try:
        empty = tempfile.mkdtemp()
    except OSError:
        os.chdir(NOWHERE)
        return
    os.chdir(empty)
    Path(empty).rmdir()


if __name__ == "__main__":
    exit_command("worker", lambda: main(int(sys.argv[1])))
