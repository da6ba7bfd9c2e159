"""The HTTP port: an ASGI application on the server's own event loop, on connections that are bounded.

uvicorn parses requests and writes answers. It bounds neither the connections nor the time that a request or a handshake
may take, nor how long an answer may wait for its reader (0.54: `limit_concurrency` refuses newcomers instead, so idle
connections would keep all other clients out, health checks included). Those bounds are here. Beyond the largest number
of connections, a new one replaces the one that has waited for its peer for longest.
"""

import asyncio
import logging
import re
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, NoReturn

import h11
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from attendant.server.grpc.port import listeners
from attendant.server.polling import until

log = logging.getLogger(__name__)

PEER_CERTIFICATE = "peer_certificate"
"""Key of a client's certificate, as ssl's `getpeercert` returns it, in the state of a request's connection."""

MAX_CONNECTIONS = 256
MAX_HANDSHAKES = 64
MAX_HEAD_BYTES = 16 * 1024
REQUEST_SECONDS = 10.0
"""Limit of a handshake; of the time from there, or from the last answer, to the head of a request; and from there to
the end of its body."""
WRITE_SECONDS = 10.0  # Limit of an answer's wait for its reader, each time that the connection's buffers are full.
RETRY_SECONDS = 0.1  # Pause after a connection that could not be accepted, e.g. because too many files are open.
END_SECONDS = 1.0  # When the server ends, answers in progress may take this long to be written.
ABSOLUTE_TARGET = re.compile(rb"https?://([^/?#@]+)(/[^?#]*)?(\?[^#]*)?", re.IGNORECASE)


class StrictRequests(h11.Connection):
    """Parses the requests of a connection, and refuses those that a proxy in front could read differently.

    Attributes:
        refusal: why the last request was refused; empty if h11 itself has refused it.
    """

    refusal = ""

    def next_event(self) -> Any:
        """Returns h11's next event. The target of a request is a path and a query, or `*`.

        Raises:
            h11.RemoteProtocolError: the request is refused; the connection must be closed.
        """
        request = super().next_event()
        if not isinstance(request, h11.Request):
            return request
        names = {name for name, _ in request.headers}
        if not request.http_version.startswith(b"1."):
            self._refuse("The version of HTTP must be 1.1 or 1.0.")
        # RFC 9112, 6.1 and 6.3: the two headers may put the end of the request at different places.
        if b"transfer-encoding" in names and (b"content-length" in names or request.http_version == b"1.0"):
            self._refuse("Transfer-Encoding must not be combined with Content-Length, nor occur in HTTP/1.0.")
        if request.target.startswith(b"/") or (request.target, request.method) == (b"*", b"OPTIONS"):
            return request
        if (url := ABSOLUTE_TARGET.fullmatch(request.target)) is None or request.method == b"CONNECT":
            self._refuse("The target must be a path, or a URL of http or https.")
        # RFC 9112, 3.2.2: the URL's host counts, not the header's.
        headers = [(name, value) for name, value in request.headers if name != b"host"]
        return h11.Request(
            method=request.method,
            headers=[(b"host", url[1]), *headers],
            target=(url[2] or b"/") + (url[3] or b""),
            http_version=request.http_version,
        )

    def _refuse(self, reason: str) -> NoReturn:
        self.refusal = reason
        raise h11.RemoteProtocolError(reason)


class BoundedConnection(H11Protocol):
    """A connection that ends when its peer takes too long.

    The time runs while the peer sends a request or does not read its answer; not while the application works.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.conn: StrictRequests = StrictRequests(h11.SERVER, MAX_HEAD_BYTES)

    def send_400_response(self, msg: str) -> None:
        super().send_400_response(self.conn.refusal or msg)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        certificate = transport.get_extra_info("peercert")
        # TLS 1.2 may have resumed a session of the same context, whose certificate has expired since.
        if certificate and ssl.cert_time_to_seconds(certificate["notAfter"]) < time.time():
            transport.abort()
        self.app_state = {PEER_CERTIFICATE: certificate}
        self._timer: asyncio.TimerHandle | None = None
        self._wait_for(REQUEST_SECONDS)
        self._make_room()

    def _make_room(self) -> None:
        if len(self.connections) > MAX_CONNECTIONS:
            idle = [other for other in _bounded(self.server_state) if other._timer is not None and other is not self]
            ended = min(idle, key=lambda other: other._waited_for_since, default=self)
            # `connection_lost` removes it too, but later, when many more may have come.
            self.connections.discard(ended)
            ended.transport.abort()

    @property
    def is_answering(self) -> bool:
        """The whole request has arrived, and its answer is not complete."""
        return self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before or (self.is_answering and not self.flow.write_paused):
            self._reset_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()  # which begins with the next request if it has arrived
        self._reset_timer()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reset_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._reset_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _reset_timer(self) -> None:
        """Waits for the peer as long as its state allows; not while the application works."""
        if self.flow.write_paused:
            self._wait_for(WRITE_SECONDS)
        elif self.is_answering:
            self._stop_waiting()
        else:
            self._wait_for(REQUEST_SECONDS)

    def _wait_for(self, seconds: float) -> None:
        self._stop_waiting()
        self._waited_for_since = self.loop.time()
        # Aborted, because a connection that is closed in order would wait for its reader again.
        self._timer = self.loop.call_later(seconds, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _bounded(state: ServerState) -> Iterator[BoundedConnection]:
    """Returns the open connections; uvicorn's type allows for other kinds."""
    return (connection for connection in state.connections if isinstance(connection, BoundedConnection))


@asynccontextmanager
async def http_server(
    app: Any, host: str, port: int, tls: Callable[[], ssl.SSLContext | None] = lambda: None
) -> AsyncIterator[int]:
    """Serves the application until the end of the context; yields the bound port. Raises UserError: as `listeners`.

    Args:
        tls: returns the context of a new connection, or None if it is not encrypted.
    """
    # Errors of clients are not logged, those of the application are.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    config = Config(
        app,
        http=BoundedConnection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        # A proxy's headers could come from anyone on this machine: tokens distinguish clients.
        proxy_headers=False,
        timeout_keep_alive=round(REQUEST_SECONDS),
    )
    config.load()
    state = ServerState()
    bound = listeners("--metrics-port", host, port)
    try:
        async with _accepting(bound, partial(BoundedConnection, config, state, {}), tls):
            yield int(bound[0].getsockname()[1])
    finally:
        await until(lambda: not any(connection.is_answering for connection in _bounded(state)), END_SECONDS)
        for connection in list(state.connections):
            connection.transport.abort()


@asynccontextmanager
async def _accepting(
    bound: Sequence[socket.socket],
    make_protocol: Callable[[], asyncio.Protocol],
    tls: Callable[[], ssl.SSLContext | None],
) -> AsyncIterator[None]:
    """Accepts connections until the end of the context, and closes the listeners and all unfinished handshakes.

    An event loop's own servers leave a connection open that they were about to make when they were closed, and allow
    any number of unfinished TLS handshakes. Here, beyond MAX_HANDSHAKES, the oldest is ended.
    """
    loop = asyncio.get_running_loop()
    # In order of arrival.
    handshakes: dict[asyncio.Task[None], None] = {}
    retries: dict[socket.socket, asyncio.TimerHandle] = {}

    async def shake_hands(accepted: socket.socket) -> None:
        context = tls()
        # Errors of the peer, ssl's among them, are OSErrors. The transport closes the socket in any case.
        with suppress(OSError):
            await loop.connect_accepted_socket(
                make_protocol, accepted, ssl=context, ssl_handshake_timeout=None if context is None else REQUEST_SECONDS
            )

    def accept(listener: socket.socket) -> None:
        try:
            accepted, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # the peer has gone
        except OSError as error:
            log.warning("no connection could be accepted", extra={"reason": error.strerror})
            loop.remove_reader(listener)
            retries[listener] = loop.call_later(RETRY_SECONDS, loop.add_reader, listener, accept, listener)
            return
        task = loop.create_task(shake_hands(accepted))
        handshakes[task] = None
        task.add_done_callback(handshakes.pop)
        if len(handshakes) > MAX_HANDSHAKES:
            next(iter(handshakes)).cancel()

    for listener in bound:
        listener.listen(MAX_CONNECTIONS)
        listener.setblocking(False)
        loop.add_reader(listener, accept, listener)
    try:
        yield
    finally:
        for retry in retries.values():
            retry.cancel()
        for listener in bound:
            loop.remove_reader(listener)
            listener.close()
        # After this, each handshake has begun: if it were cancelled before, its socket would stay open.
        await asyncio.sleep(0)
        left = list(handshakes)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
