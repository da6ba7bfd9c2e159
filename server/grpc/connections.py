"""The connections of the gRPC port, found where Linux lists them, since grpcio (1.85) exposes none of them.

gRPC closes connections beyond its limit, and waits five minutes for peers that make no call. So connections without a
call are closed here before that limit is reached, the one that has been idle for longest first. And when the server
ends, they are shut down here, because gRPC would cancel calls that reach it meanwhile.
"""

import asyncio
import os
import socket
import stat
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote

from attendant.server.polling import until

DESCRIPTORS = Path("/proc/self/fd")

HEADROOM = 64
"""Connections beyond the limit that gRPC accepts; they stay until the next look."""

LOOK_SECONDS = 0.25

OPEN_STATES = frozenset({1, 4, 5})
"""Linux's TCP states in which the peer has not closed its side: ESTABLISHED, FIN_WAIT1, FIN_WAIT2."""


class Connections:
    """The calls of each connection: how many are in progress, and when the last one ended.

    Connections are named by their peers, as gRPC names them.
    """

    def __init__(self, max_connections: int) -> None:
        self.max_connections = max_connections
        self._num_calls: dict[str, int] = {}
        self._used_at: dict[str, float] = {}

    @contextmanager
    def calling(self, peer: str) -> Iterator[None]:
        """Notes a call whose request has been read. Only calls that end with an answer count as a use."""
        peer = unquote(peer)
        self._num_calls[peer] = self._num_calls.get(peer, 0) + 1
        try:
            yield
            self._used_at[peer] = time.monotonic()
        finally:
            self._num_calls[peer] -= 1
            if not self._num_calls[peer]:
                del self._num_calls[peer]

    @contextmanager
    def bounded(self, port: int) -> Iterator[None]:
        """Keeps a port's connections within the limit."""

        async def look() -> None:
            while True:
                await asyncio.sleep(LOOK_SECONDS)
                # Counting takes a fraction of a millisecond, looking at each of a thousand some.
                num_descriptors = sum(1 for _ in DESCRIPTORS.iterdir())
                if len(self._used_at) > 2 * self.max_connections or num_descriptors > self.max_connections:
                    self.make_room(port)

        looking = asyncio.create_task(look())
        try:
            yield
        finally:
            looking.cancel()

    def make_room(self, port: int) -> None:
        """Closes the connections beyond the limit that have no call: first those that never had one."""
        peers = (_peer_of(connection) for connection in _sockets(port))
        seen_at = {peer: index for index, peer in enumerate(peers) if peer}
        self._used_at = {peer: used for peer, used in self._used_at.items() if peer in seen_at}
        idle = [peer for peer in seen_at if peer not in self._num_calls]
        # Among connections without a call, a lower descriptor has mostly been opened before.
        idle.sort(key=lambda peer: (self._used_at.get(peer, 0.0), seen_at[peer]))
        hang_up_on(idle[: max(0, len(seen_at) - self.max_connections)], port)


def num_connections(port: int) -> int:
    """Returns the number of a port's connections."""
    return sum(not _listens(connection) for connection in _sockets(port))


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
            connection.shutdown(socket.SHUT_RDWR if _listens(connection) else socket.SHUT_WR)
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


def _listens(connection: socket.socket) -> bool:
    return bool(connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _state(connection: socket.socket) -> int:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
