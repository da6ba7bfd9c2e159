"""The end of the gRPC port's connections."""

import socket
from contextlib import suppress

from attendant.server.access.connections import listens, tcp_sockets
from attendant.server.polling import until

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
