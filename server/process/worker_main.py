"""A worker process: loads one bundle, checks it as the server itself would, says so, and decodes until nobody listens.

It has no gRPC, no metrics and no signals of its own: its life is the connection that it was given.
"""

import logging
import signal
import socket
import sys

from attendant.runtime.command import exit_command
from attendant.runtime.errors import UserError
from attendant.server.config import ServerConfig
from attendant.server.engine.remote.frames import framed, receive_one
from attendant.server.engine.remote.messages import READY
from attendant.server.engine.remote.serving import serve_engine
from attendant.server.loading import load_engine, open_within_limits
from attendant.server.observability.logs import configure_logging

log = logging.getLogger(__name__)

ENGINE_DIED = 1


def main(descriptor: int) -> int:
    """The whole life of a worker; returns its exit status."""
    # A terminal sends them to the workers too. The server decides when to end, and then closes the connection.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=descriptor) as connection:
        try:
            _serve(connection)
        except (BrokenPipeError, ConnectionResetError):
            log.debug("the server has gone")
        except Exception:
            log.exception("this worker has failed, and ends")
            return ENGINE_DIED
    return 0


def _serve(connection: socket.socket) -> None:
    config = receive_one(connection)
    if not isinstance(config, ServerConfig):
        return
    configure_logging(config.log_level, config.log_format)
    try:
        (path,) = config.bundles
        engine = load_engine(open_within_limits(path, config), config)
    except UserError as error:
        connection.sendall(framed(UserError(str(error))))
        return
    connection.sendall(framed(READY))
    serve_engine(connection, engine)


if __name__ == "__main__":
    exit_command("worker", lambda: main(int(sys.argv[1])))
