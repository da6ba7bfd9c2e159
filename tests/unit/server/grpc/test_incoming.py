"""Tests of messages and connections of the gRPC port, whose callers connect and leave."""

import asyncio
import resource
import socket
import struct
from contextlib import closing
from typing import Any

import pytest

from attendant.server.grpc.handlers import ConnectionCalls, read
from attendant.server.grpc.port import HEADROOM, allowed_connections, make_room


class Call:
    """A fake of gRPC's context, whose `read` frees its resources after the message has arrived."""

    def __init__(self) -> None:
        self.arrived: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.aborted: Exception | None = None
        self.has_freed = False

    async def read(self) -> Any:
        raw = await self.arrived
        self.has_freed = True
        if self.aborted is not None:
            raise self.aborted
        return raw


async def test_a_message_that_arrives_is_read() -> None:
    call = Call()
    reading = read(call)
    call.arrived.set_result(b"ab")
    assert await reading == b"ab"


async def test_a_cancelled_reading_goes_on_until_its_call_has_ended() -> None:
    call = Call()
    reading = read(call)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert not call.arrived.cancelled()
    call.arrived.set_result(b"")
    await asyncio.sleep(0)
    assert call.has_freed


async def test_exceptions_of_a_reading_are_raised() -> None:
    call = Call()
    reading = read(call)
    call.aborted = ValueError("aborted")
    call.arrived.set_result(b"")
    with pytest.raises(ValueError, match="aborted"):
        await reading


def test_connections_reset_by_their_peer_are_skipped() -> None:
    """gRPC closes such a socket a moment later. Until then, the socket has no peer."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
        accepted = [listener.accept()[0] for _ in clients]
        clients[0].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        clients[0].close()
        make_room(port, 1, ConnectionCalls())
        # Of the two live connections, the older one was closed.
        assert clients[1].recv(1) == b""
        clients[2].setblocking(False)
        with pytest.raises(BlockingIOError):
            clients[2].recv(1)
        for peer in (*clients[1:], *accepted):
            peer.close()


@pytest.mark.parametrize(
    ("soft", "hard", "connections", "raised"),
    [
        (1024, 1 << 20, 1000, 1576),
        (4096, 4096, 1000, None),
        (1024, resource.RLIM_INFINITY, 1000, 1576),
        (1024, 1024, 448, 1024),
        (256, 400, 100, 400),
    ],
)
def test_connections_leave_descriptors_to_look_for_idle_ones(
    soft: int, hard: int, connections: int, raised: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, pair: limits.append(pair))
    assert allowed_connections(1000) == (connections, connections + HEADROOM)
    assert limits == ([] if raised is None else [(raised, hard)])


def test_connections_of_a_process_with_few_descriptors_leave_half_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (64, 64))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, pair: None)
    assert allowed_connections(1000) == (16, 32)
