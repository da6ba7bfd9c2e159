"""A worker process: loads one bundle, checks it, says so, and decodes until nobody listens.

It has no gRPC, no metrics and no signals of its own: its life is the connection that it was given.
"""

import logging
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

from attendant.runtime.command import exit_command
from attendant.runtime.errors import UserError
from attendant.server.config import ServerConfig
from attendant.server.engine.remote.flight_record import FlightRecord
from attendant.server.engine.remote.frames import framed, receive_one
from attendant.server.engine.remote.serving import StrangeSocket, inherited, serve_engine
from attendant.server.loading import load_engine
from attendant.server.observability.logs import configure_logging, log_what_python_prints
from attendant.server.opening import open_within_limits

log = logging.getLogger(__name__)

ENGINE_DIED = 1
REFUSED = 2

OOM_SCORE = Path("/proc/self/oom_score_adj")
FIRST_TO_GO = "500"
"""When memory runs out, the kernel ends the worker rather than the server, which starts another one."""

NICENESS = 5
"""Beside the server's own process, which refuses, and passes answers on: where processors are short it goes first."""


def main(descriptor: int, record: int) -> int:
    """The whole life of a worker; returns its exit status.

    Args:
        descriptor: of the connection.
        record: of the flight record's memory.
    """
    # A terminal sends them to the workers too. The server decides when to end, and then closes the connection.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    os.nice(NICENESS)
    with suppress(OSError):
        OOM_SCORE.write_text(FIRST_TO_GO)
    try:
        connection = inherited(descriptor)
    except StrangeSocket as error:
        print(f"worker: only a server starts a worker, and gives it a socket: {error}", file=sys.stderr)
        return REFUSED
    with connection:
        try:
            _serve(connection, record)
        except (BrokenPipeError, ConnectionResetError):
            log.debug("the server has gone")
        except Exception:
            log.exception("this worker has failed, and ends")
            return ENGINE_DIED
    return 0


def _serve(connection: socket.socket, record: int) -> None:
    config = receive_one(connection)
    if not isinstance(config, ServerConfig):
        return
    configure_logging(config.log_level, config.log_format)
    log_what_python_prints()
    try:
        (path,) = config.bundles
        engine, ready = load_engine(open_within_limits(path, config), config, FlightRecord(record).note)
    except UserError as error:
        connection.sendall(framed(UserError(error.summary, error.differences)))
        return
    os.close(record)
    connection.sendall(framed(ready))
    serve_engine(connection, engine)


if __name__ == "__main__":
    exit_command("worker", lambda: main(int(sys.argv[1]), int(sys.argv[2])))
