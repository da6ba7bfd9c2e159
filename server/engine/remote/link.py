"""The server's end of the socket to one worker process, on the event loop."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from attendant.runtime.errors import UserError
from attendant.server.engine.remote.frames import Frames, framed
from attendant.server.engine.remote.messages import Commands, Ready, Report

log = logging.getLogger(__name__)


class Link(asyncio.Protocol):
    """The connection to one worker. Commands of one turn of the event loop are sent as one message.

    Attributes:
        first: a future of the worker's first message, Ready or why not; None where it ended before.
    """

    def __init__(self, on_report: Callable[[Report], None], on_lost: Callable[[], None]) -> None:
        """`on_lost`: called if a worker that was ready ends."""
        self.first: asyncio.Future[Ready | UserError | None] = asyncio.get_running_loop().create_future()
        self._is_ready = False
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
            for message in self._frames.feed(data):
                if self._is_ready:
                    self._on_report(message)
                elif not self.first.done():
                    self._is_ready = isinstance(message, Ready)
                    self.first.set_result(message)
        except Exception:
            log.exception("what a worker process said can't be understood")
            self.hang_up()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_ready:
            self._on_lost()
        elif not self.first.done():
            self.first.set_result(None)

    def _send_commands(self) -> None:
        commands, self._commands = self._commands, None
        # To a worker that has gone, nothing is sent; that it went is told by `connection_lost`.
        if not self._transport.is_closing():
            self._transport.write(framed(commands))
