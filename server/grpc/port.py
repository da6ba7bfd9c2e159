"""The gRPC server, its port and its connections.

Connections are looked up where Linux lists them, since grpcio (1.85) exposes none. gRPC closes connections beyond its
limit, and waits five minutes for peers that make no call. So connections without a call are closed here before that
limit is reached, the one that has been idle for longest first. And when the server ends, they are shut down here,
because gRPC would cancel calls that reach it meanwhile.
"""

import asyncio
import errno
import logging
import os
import resource
import socket
import stat
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import Any

import grpc

from attendant.runtime.errors import UserError, shown
from attendant.server.errors import UnknownMethod
from attendant.server.grpc.handlers import ConnectionCalls
from attendant.server.metrics import Metrics
from attendant.server.polling import checking, until

log = logging.getLogger(__name__)

MAX_REQUEST_BYTES = 256 * 1024
"""Limit of a request, which is a sentence; gRPC refuses longer ones before they are parsed. Answers may be larger."""

MAX_METADATA_BYTES = 16 * 1024

ANSWER_SECONDS = 1.0
"""When the server ends: how long a call that has its outcome may take to write it, and a peer to hang up."""

REBIND_SECONDS = 0.01  # Interval at which a port is tried until the former server has released it.
OTHER_DESCRIPTORS = 512
"""Open files except gRPC's connections: HTTP connections and their handshakes, at most 320, workers, libraries."""

LOOPBACK = ("127.0.0.1", "::1")
"""The addresses of `localhost`, which gRPC's clients try also if the system's file of hosts has only one of them."""

ABSENT_ADDRESS = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})

NO_LIMIT = 2**31 - 1

OPTIONS = (
    # Without it a second server would bind the same port, and take half of the connections.
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.max_send_message_length", -1),
    # The first is 8 KiB by default, and gRPC refuses calls between the two at random.
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
    # Calls that have not been accepted yet: gRPC cancels those above 1000, at random, and those older than 30 s, and
    # clients don't retry a call that was cancelled. Their number is limited with the connections and the calls of each.
    ("grpc.server.max_pending_requests", NO_LIMIT),
    ("grpc.server.max_pending_requests_hard_limit", NO_LIMIT),
    ("grpc.server_max_unrequested_time_in_server", 24 * 3600),
    # Bytes of a message that may arrive before it is read; while it is read, its whole length may come.
    ("grpc.http2.lookahead_bytes", 16 * 1024),
    # Otherwise windows would grow with the bandwidth, beyond the line above.
    ("grpc.http2.bdp_probe", 0),
    # Connections on which nothing happens: before the handshake (TCP, TLS, HTTP/2), without calls, or without a peer.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 5 * 60_000),
    ("grpc.keepalive_time_ms", 60_000),
    # Not keepalive_timeout_ms, which closes nothing in grpcio 1.85.
    ("grpc.http2.ping_timeout_ms", 20_000),
    # Clients may ping too; a connection that does so more often is closed (GOAWAY, too_many_pings).
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
)


def grpc_server(
    handlers: grpc.GenericRpcHandler,
    *,
    max_connections: int,
    max_calls_per_connection: int,
    connection_seconds: float | None = None,
) -> grpc.aio.Server:
    """Returns a server that does not listen yet.

    Args:
        connection_seconds: after this time, and the end of its calls, a connection is closed. If None, it never is.
    """
    limits = (
        ("grpc.max_allowed_incoming_connections", max_connections),
        ("grpc.max_concurrent_streams", max_calls_per_connection),
        # A call ends for its caller before gRPC has freed it. Without room for such calls the next ones, which the
        # caller may make, are refused: of 10,000 at once 7,946 without room, 1,533 with an eighth, none with this. More
        # room takes more memory if a client resets calls as fast as it can.
        ("grpc.http2.max_deallocating_streams", max_calls_per_connection),
    )
    age = () if connection_seconds is None else (("grpc.max_connection_age_ms", round(1000 * connection_seconds)),)
    server = grpc.aio.server(options=(*OPTIONS, *limits, *age))
    # Generated code also registers each method with gRPC. A server then waits for the next call of each method apart,
    # and at each call begins to wait for all of them again: 20 methods took a twentieth of the process's time.
    server.add_generic_rpc_handlers((handlers,))
    return server


def bind(server: grpc.aio.Server, host: str, port: int, credentials: grpc.ServerCredentials | None = None) -> int:
    """Binds a server's port, and returns its number; 0 takes a free one. Raises UserError: as `listeners`.

    Args:
        credentials: for TLS; if None, connections are not encrypted.
    """
    # gRPC writes its reasons to standard error, past every log level, and raises without one. So try the port first.
    # gRPC gets addresses, because it can't resolve all names that the system resolves, such as 127.1.
    probes = listeners("--port", host, port)
    addresses = [probe.getsockname()[0] for probe in probes]
    for probe in probes:
        probe.close()
    try:
        for address in addresses:
            if credentials is None:
                port = server.add_insecure_port(authority(address, port))
            else:
                port = server.add_secure_port(authority(address, port), credentials)
    except RuntimeError as error:
        raise _port_refused("--port", host, port, str(error)) from None
    return port


def listeners(option: str, host: str, port: int) -> list[socket.socket]:
    """Listens on a port at each address of a host; 0 takes the same free port at all of them.

    Addresses that this machine lacks are left out, e.g. that of `localhost` in IPv6 if IPv6 is off.

    Raises:
        UserError: the port is in use, or the host is unknown or not this machine's.
    """
    bound: list[socket.socket] = []
    absent: OSError | None = None
    with ExitStack() as closing:
        try:
            names = LOOPBACK if host.lower() == "localhost" else [host]
            infos = [each for name in names for each in socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)]
            for family, *_, address in infos:
                place = address[0], bound[0].getsockname()[1] if bound else port, *address[2:]
                dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
                try:
                    listener = socket.create_server(place, family=family, dualstack_ipv6=dual)
                except OSError as error:
                    if error.errno not in ABSENT_ADDRESS:
                        raise
                    absent = error
                else:
                    bound.append(closing.enter_context(listener))
            if absent is not None and not bound:
                raise absent
        except (UnicodeError, socket.gaierror) as error:
            reason = "not a valid host name" if isinstance(error, UnicodeError) else error.strerror
            limit = f"an address or a name of this machine: {reason}"
            raise UserError(f"--host is {shown(host)}, must be {limit}") from None
        except OSError as error:
            # An error of create_server repeats the address.
            raise _port_refused(option, host, port, os.strerror(error.errno or 0)) from None
        closing.pop_all()
    return bound


def _port_refused(option: str, host: str, port: int, reason: str) -> UserError:
    """Returns the error for a port that an option names and that can't be bound."""
    return UserError(
        f"{option}: can't listen on {authority(host, port)}: {reason}; choose another {option} or --host, or "
        f"{option} 0 for a free one"
    )


class GrpcPort:
    """A port and the gRPC server that listens there, which is replaced when a call ends it.

    grpcio (1.85.1 and before) decodes the path of each call as UTF-8 in the loop that accepts calls. A call whose path
    is not UTF-8 ends this loop, and with it the server; calls that were accepted before go on. The end of that loop is
    seen by its task, which has a name but no attribute.

    Attributes:
        port: the number that was bound.
    """

    def __init__(
        self,
        make_server: Callable[[], grpc.aio.Server],
        metrics: Metrics,
        host: str,
        port: int,
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        """Binds the port, see `bind`."""
        self._make_server = make_server
        self._metrics = metrics
        self._server = make_server()
        self.port = bind(self._server, host, port, credentials)
        self._address = (host, self.port, credentials)
        self._is_closing = False
        self._replacing: asyncio.Task[None] | None = None
        # Servers that have ended, as long as they have calls.
        self._former: dict[asyncio.Task[None], grpc.aio.Server] = {}

    async def start(self) -> None:
        before = asyncio.all_tasks()
        await self._server.start()
        for task in asyncio.all_tasks() - before:
            if _name_of(task) == "AioServer._server_main_loop":
                task.add_done_callback(self._accepts_no_more)

    async def close(self, answered: Callable[[float], Awaitable[None]]) -> None:
        """Ends a server that refuses new requests. Calls are answered; those that arrive last are UNAVAILABLE.

        Args:
            answered: waits until the calls that are under way have been answered, but no longer than some seconds.
        """
        self._is_closing = True
        if self._replacing is not None:
            self._replacing.cancel()
        await answered(ANSWER_SECONDS)
        await hang_up(self.port, ANSWER_SECONDS)
        await answered(ANSWER_SECONDS)
        for server in (self._server, *self._former.values()):
            await server.stop(None)

    def _accepts_no_more(self, task: "asyncio.Task[Any]") -> None:
        if self._is_closing or task.cancelled():
            return
        for other in asyncio.all_tasks():
            if _name_of(other) == "AioServer.shutdown":
                # Otherwise asyncio would log the path.
                other.add_done_callback(lambda task: task.cancelled() or task.exception())
        self._metrics.rejected.labels("", UnknownMethod.reason).inc()
        log.error("a call whose path is not UTF-8 has ended the gRPC server, which is replaced")
        self._replacing = asyncio.create_task(self._replace())

    async def _replace(self) -> None:
        ending = asyncio.create_task(_ended(self._server))
        self._former[ending] = self._server
        ending.add_done_callback(self._former.pop)
        while True:
            self._server = self._make_server()
            try:
                bind(self._server, *self._address)
            except UserError:  # the former server has still to give it up
                await asyncio.sleep(REBIND_SECONDS)
            else:
                return await self.start()


def _name_of(task: "asyncio.Task[Any]") -> str:
    return getattr(task.get_coro(), "__qualname__", "")


async def _ended(server: grpc.aio.Server) -> None:
    """Waits until a server that accepts no calls has answered the calls that it has."""
    with suppress(UnicodeDecodeError):
        await server.wait_for_termination()


def allowed_connections(max_connections: int) -> tuple[int, int]:
    """Raises the limit of open files for the connections.

    With more of them than the system allows, idle ones could not be closed, because even looking for them takes a
    descriptor.

    Returns:
        How many connections may stay, and how many gRPC may accept: those beyond the first number stay until the next
        look.
    """
    needed = max_connections + HEADROOM + OTHER_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return max_connections, max_connections + HEADROOM
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed == needed:
        return max_connections, max_connections + HEADROOM
    # A process that may open few files keeps a quarter of them for connections: OTHER_DESCRIPTORS is rarely used up.
    fitting = max(allowed // 4, max_connections - (needed - allowed))
    facts = {"open_files": allowed, "needed": needed, "max_connections": fitting}
    log.warning("the system allows too few open files for --max-connections, which is lowered", extra=facts)
    return fitting, fitting + min(HEADROOM, allowed // 4)


def authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


DESCRIPTORS = Path("/proc/self/fd")

HEADROOM = 64  # Connections beyond the limit that gRPC accepts at most.
LOOK_SECONDS = 0.25

OPEN_STATES = frozenset({1, 4, 5})
"""Linux's TCP states in which the peer has not closed its side: ESTABLISHED, FIN_WAIT1, FIN_WAIT2."""
LISTEN = 10


def bounded(port: int, max_connections: int, calls: ConnectionCalls) -> AbstractContextManager[None]:
    """Keeps a port's connections within the limit until the end of the context."""

    async def look() -> None:
        # Counting takes a fraction of a millisecond, looking at each of a thousand some.
        num_descriptors = sum(1 for _ in DESCRIPTORS.iterdir())
        if len(calls.used_at) > 2 * max_connections or num_descriptors > max_connections:
            make_room(port, max_connections, calls)

    return checking(LOOK_SECONDS, look)


def make_room(port: int, max_connections: int, calls: ConnectionCalls) -> None:
    """Closes the connections beyond the limit that have no call: first those that never had one."""
    peers = (_peer_of(connection) for connection in _sockets(port))
    seen_at = {peer: index for index, peer in enumerate(peers) if peer}
    calls.keep(seen_at)
    idle = [peer for peer in seen_at if peer not in calls.num_calls]
    # Among connections without a call, a lower descriptor has mostly been opened before.
    idle.sort(key=lambda peer: (calls.used_at.get(peer, 0.0), seen_at[peer]))
    hang_up_on(idle[: max(0, len(seen_at) - max_connections)], port)


def num_connections(port: int) -> int:
    return sum(_state(connection) != LISTEN for connection in _sockets(port))


def hang_up_on(peers: Collection[str], port: int | None = None) -> None:
    """Ends the connections of these peers, and with them everything that gRPC holds for them."""
    for connection in _sockets(port) if peers else ():
        if _peer_of(connection) in peers:
            with suppress(OSError):  # it has just been closed
                connection.shutdown(socket.SHUT_RDWR)


async def hang_up(port: int, seconds: float) -> None:
    """Stops listening at a port, and ends its connections after everything written to them has arrived.

    gRPC cancels calls that reach it while it shuts down, and clients don't retry a cancelled call. But every client
    library takes the end of a connection for UNAVAILABLE.

    Args:
        seconds: how long the peers may take to close their side.
    """
    for connection in _sockets(port):
        with suppress(OSError):  # it has just been closed
            connection.shutdown(socket.SHUT_RDWR if _state(connection) == LISTEN else socket.SHUT_WR)
    await until(lambda: all(_state(connection) not in OPEN_STATES for connection in _sockets(port)), seconds)


def _sockets(port: int | None) -> Iterator[socket.socket]:
    """Yields a duplicate of each TCP socket of this process at a port, or at any; it is closed after its turn."""
    for path in list(DESCRIPTORS.iterdir()):
        with suppress(OSError):  # it has just been closed
            if not stat.S_ISSOCK(os.fstat(int(path.name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(path.name))) as duplicate:
                is_tcp = duplicate.family in {socket.AF_INET, socket.AF_INET6}
                if is_tcp and port in (None, duplicate.getsockname()[1]):
                    yield duplicate


def _peer_of(connection: socket.socket) -> str:
    """Returns the peer's name as gRPC writes it; empty if the socket listens, or its peer has reset the connection."""
    try:
        host, number = connection.getpeername()[:2]
    except OSError:
        return ""
    host = host.removeprefix("::ffff:")  # IPv4 on a socket for both
    return f"ipv6:[{host}]:{number}" if ":" in host else f"ipv4:{host}:{number}"


def _state(connection: socket.socket) -> int:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
