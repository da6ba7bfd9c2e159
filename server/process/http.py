"""The HTTP port: an ASGI application on the server's own event loop, behind connections that are bounded.

uvicorn parses and answers; it bounds neither connections nor the time that a request's head may take, nor how long an
answer may wait for its reader. Those bounds are here. Beyond the largest number of connections, a newcomer takes the
place of the one that has been idle longest, so that idle ones, however many, keep nobody out.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from logging import ERROR, getLogger
from typing import Any

from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from attendant.runtime.errors import UserError
from attendant.server.process.listening import authority

MAX_CONNECTIONS = 128
MAX_HEAD_BYTES = 16 * 1024
REQUEST_SECONDS = 10.0
"""From the connection's beginning, or from its last answer, to a whole head of a request."""
WRITE_SECONDS = 10.0
"""How long an answer may wait for its reader, each time that the connection's buffers are full."""


class BoundedConnection(H11Protocol):
    """A connection that ends when it takes too long.

    It is waited for while it brings a request and while it does not read its answer; not while the application works.
    """

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._timer: asyncio.TimerHandle | None = None
        self._idle_since = self.loop.time()
        self._wait_for(REQUEST_SECONDS)
        if len(self.connections) > MAX_CONNECTIONS:
            idle = [one for one in self._others() if not one.is_answering]
            ended = min(idle, key=lambda one: one._idle_since, default=self)
            # It is told of its end later, when many more may have come.
            self.connections.discard(ended)
            ended.transport.abort()

    def _others(self) -> "Iterator[BoundedConnection]":
        return (one for one in self.connections if isinstance(one, BoundedConnection) and one is not self)

    @property
    def is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.is_answering and not self.flow.write_paused:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        self._idle_since = self.loop.time()
        super().on_response_complete()  # which begins with the next request, where it is there already
        self._wait_as_it_stands()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait_as_it_stands()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._wait_as_it_stands()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait_as_it_stands(self) -> None:
        if self.flow.write_paused:
            self._wait_for(WRITE_SECONDS)
        elif self.is_answering:
            self._stop_waiting()
        else:
            self._wait_for(REQUEST_SECONDS)

    def _wait_for(self, seconds: float) -> None:
        self._stop_waiting()
        # Aborted: a connection that is closed in order would wait for its reader again.
        self._timer = self.loop.call_later(seconds, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


@asynccontextmanager
async def http_server(app: Any, host: str, port: int) -> AsyncIterator[int]:
    """Serves the application until the end of the context; gives the port that is bound.

    Raises:
        UserError: the port is in use, or the host is none of this machine's.
    """
    # What a client does wrong is its affair, and counted nowhere; what the application does wrong is logged.
    getLogger("uvicorn.error").setLevel(ERROR)
    config = Config(
        app,
        http=BoundedConnection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        timeout_keep_alive=round(REQUEST_SECONDS),
    )
    config.load()
    state = ServerState()
    listener = _bound(host, port)
    server = await asyncio.get_running_loop().create_server(
        lambda: BoundedConnection(config, state, {}), sock=listener, backlog=MAX_CONNECTIONS
    )
    try:
        yield int(listener.getsockname()[1])
    finally:
        server.close()
        for connection in list(state.connections):
            connection.transport.abort()


def _bound(host: str, port: int) -> socket.socket:
    listener = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except OSError as error:
        if listener is not None:
            listener.close()
        reason = error.strerror or str(error)
        raise UserError(
            f"--metrics-port: can't listen on {authority(host, port)}: {reason}; choose another one"
        ) from None
    return listener
