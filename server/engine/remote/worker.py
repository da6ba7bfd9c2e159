"""What a server needs of a worker process, whoever started it."""

import socket
from typing import Protocol

from attendant.server.engine.remote.flight_record import FlightRecord


class Worker(Protocol):
    """A process that was told to load its bundle, and says at the other end of the connection what became of it."""

    @property
    def connection(self) -> socket.socket: ...

    @property
    def record(self) -> FlightRecord: ...

    def kill(self) -> None:
        """Ends it at once, whatever it does, even if it is stopped."""

    def ending(self) -> str:
        """How it ended, for the log; empty while it runs."""
