"""The list of the gRPC port's connections, while peers go."""

import socket
import struct
from contextlib import closing

import pytest

from attendant.server.grpc.connections import Connections


def test_a_peer_that_has_reset_its_connection_stops_nothing() -> None:
    """gRPC closes such a socket a moment later; until then it has no peer any more."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
        accepted = [listener.accept()[0] for _ in clients]
        clients[0].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        clients[0].close()
        Connections(max_connections=1).make_room(port)
        # The connection that has been open for longer was closed.
        assert clients[1].recv(1) == b""
        clients[2].setblocking(False)
        with pytest.raises(BlockingIOError):
            clients[2].recv(1)
        for one in (*clients[1:], *accepted):
            one.close()
