"""The connections of the gRPC port: found where the system lists them, since gRPC exposes none of them.

gRPC closes connections beyond its limit, and waits five minutes for peers that make no call. So connections without a
call are closed here before that limit is reached, the one that has been idle for longest first. And when the server
ends, they are shut down here, because of how gRPC cancels calls.
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
"""Connections beyond the limit that gRPC accepts: they stay until the next look."""

LOOK_SECONDS = 0.25


class Connections:
    """What is known of connections, by gRPC's names for their peers: calls under way, and when the last one ended."""

    def __init__(self, max_connections: int) -> None:
        self.max_connections = max_connections
        self._num_calls: dict[str, int] = {}
        self._used_at: dict[str, float] = {}

    @contextmanager
    def calling(self, peer: str) -> Iterator[None]:
        """For a call whose request has been read. Only one that ends with an answer counts as a use."""
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
                if len(self._used_at) > 2 * self.max_connections or _num_descriptors() > self.max_connections:
                    self.make_room(port)

        looking = asyncio.create_task(look())
        try:
            yield
        finally:
            looking.cancel()

    def make_room(self, port: int) -> None:
        """Closes the connections beyond the limit that have no call: first those that never had one."""
        seen_at = {_peer_of(one): index for index, one in enumerate(tcp_sockets(port)) if not listens(one)}
        self._used_at = {peer: used for peer, used in self._used_at.items() if peer in seen_at}
        idle = [peer for peer in seen_at if peer not in self._num_calls]
        # Among those without a call, a lower descriptor has mostly been opened before.
        idle.sort(key=lambda peer: (self._used_at.get(peer, 0.0), seen_at[peer]))
        hang_up_on(idle[: max(0, len(seen_at) - self.max_connections)], port)


def hang_up_on(peers: Collection[str], port: int | None = None) -> None:
    """Ends the connections of these peers, and with them what gRPC holds for them."""
    for one in tcp_sockets(port) if peers else ():
        with suppress(OSError):  # the peer was quicker, or it listens and has none
            if _peer_of(one) in peers:
                one.shutdown(socket.SHUT_RDWR)


def num_connections(port: int) -> int:
    """Returns how many connections a port has."""
    return sum(not listens(one) for one in tcp_sockets(port))


def tcp_sockets(port: int | None) -> Iterator[socket.socket]:
    """A duplicate of each socket of this process at that port, or any, open until the next one is asked for."""
    for path in list(DESCRIPTORS.iterdir()):
        with suppress(OSError):  # closed meanwhile
            if not stat.S_ISSOCK(os.fstat(int(path.name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(path.name))) as one:
                if one.family in {socket.AF_INET, socket.AF_INET6} and port in (None, one.getsockname()[1]):
                    yield one


def _num_descriptors() -> int:
    return sum(1 for _ in DESCRIPTORS.iterdir())


def _peer_of(one: socket.socket) -> str:
    """The peer's name, as gRPC spells it."""
    host, number = one.getpeername()[:2]
    host = host.removeprefix("::ffff:")  # IPv4 on a socket for both
    return f"ipv6:[{host}]:{number}" if ":" in host else f"ipv4:{host}:{number}"


def listens(one: socket.socket) -> bool:
    return bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


OPEN_STATES = frozenset({1, 4, 5})
"""Of Linux's TCP, where the peer has not closed its side: ESTABLISHED, FIN_WAIT1, FIN_WAIT2."""


async def hang_up(port: int, seconds: float) -> None:
    """Stops listening at a port, and ends its connections once the peers have all that was written to them.

    gRPC cancels calls that reach it while it shuts down, and nobody retries what was cancelled. The end of a connection
    is different: every client library takes it for UNAVAILABLE.

    Args:
        seconds: how long the peers may take to close their side.
    """
    for one in tcp_sockets(port):
        with suppress(OSError):  # the peer was quicker
            one.shutdown(socket.SHUT_RDWR if listens(one) else socket.SHUT_WR)
    await until(lambda: all(_state(one) not in OPEN_STATES for one in tcp_sockets(port)), seconds)


def _state(one: socket.socket) -> int:
    return one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
