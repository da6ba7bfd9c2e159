"""TCP sockets of this process, found where the system lists them: gRPC makes them, and hands none of them out."""

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from attendant.server.polling import until

DESCRIPTORS = Path("/proc/self/fd")

OPEN_STATES = frozenset({1, 4, 5})
"""Of Linux's TCP, where the peer has not closed its side: ESTABLISHED, FIN_WAIT1, FIN_WAIT2."""


async def hang_up(port: int, seconds: float) -> None:
    """Stops listening at a port, and ends its connections once the peers have all that was written to them.

    gRPC cancels calls that reach it while it shuts down, and nobody retries what was cancelled. The end of a connection
    is different: every client library takes it for UNAVAILABLE.

    Args:
        seconds: how long the peers may take to close their side.
    """
    for one in _sockets(port):
        with suppress(OSError):  # the peer was quicker
            one.shutdown(socket.SHUT_RDWR if _listens(one) else socket.SHUT_WR)
    await until(lambda: all(_state(one) not in OPEN_STATES for one in _sockets(port)), seconds)


def _sockets(port: int) -> Iterator[socket.socket]:
    """A duplicate of each, open until the next one is asked for."""
    for path in list(DESCRIPTORS.iterdir()):
        with suppress(OSError):  # closed meanwhile
            if not stat.S_ISSOCK(os.fstat(int(path.name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(path.name))) as one:
                if one.family in {socket.AF_INET, socket.AF_INET6} and one.getsockname()[1] == port:
                    yield one


def _state(one: socket.socket) -> int:
    return one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]


def _listens(one: socket.socket) -> bool:
    return bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
