"""Tests of errors: the class and the details of each status code, and the calls that are retried."""

import asyncio
import socket
import time

import grpc
import pytest

from attendant_client import (
    AttendantClient,
    AttendantError,
    DeadlineExceeded,
    InvalidArgument,
    Overloaded,
    Unavailable,
)
from tests.unit.client.fake_server import Failure, Served, retry_info, served

CLASSES = {
    "INVALID_ARGUMENT": "InvalidArgument",
    "NOT_FOUND": "NotFound",
    "UNAUTHENTICATED": "Unauthenticated",
    "UNIMPLEMENTED": "Unimplemented",
    "RESOURCE_EXHAUSTED": "Overloaded",
    "UNAVAILABLE": "Unavailable",
    "DEADLINE_EXCEEDED": "DeadlineExceeded",
}
# The server forbids retries, so that each failure reaches the caller.
NO_RETRY = (("grpc-retry-pushback-ms", "-1"),)


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK], ids=str)
async def test_each_code_has_its_class(client: AttendantClient, server: Served, code: grpc.StatusCode) -> None:
    server.seq2seq.failures.append(Failure(code, "why\nit failed", trailers=NO_RETRY))
    with pytest.raises(AttendantError) as caught:
        await client.generate("a")
    assert type(caught.value).__name__ == CLASSES.get(code.name, "ServerError")
    assert caught.value.code is code
    assert str(caught.value) == caught.value.message == "why it failed"


async def test_a_failure_without_a_message_gets_one(client: AttendantClient, server: Served) -> None:
    server.seq2seq.failures.append(Failure(grpc.StatusCode.UNAUTHENTICATED, ""))
    with pytest.raises(AttendantError, match="the server requires credentials"):
        await client.models()


async def test_errors_have_the_servers_retry_delay(client: AttendantClient, server: Served) -> None:
    failure = Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, details=(retry_info(1.5),), trailers=NO_RETRY)
    server.seq2seq.failures.extend([failure, Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, trailers=NO_RETRY)])
    with pytest.raises(Overloaded) as caught:
        await client.generate("a")
    assert caught.value.retry_seconds == 1.5
    with pytest.raises(Overloaded) as caught:
        await client.generate("a")
    assert caught.value.retry_seconds is None


@pytest.mark.parametrize("garbage", [b"\xff\xff", b"\x1a\x02\x12\x05"])
async def test_unreadable_details_are_left_out(client: AttendantClient, server: Served, garbage: bytes) -> None:
    trailers = (("grpc-status-details-bin", garbage),)
    server.seq2seq.failures.append(Failure(grpc.StatusCode.INVALID_ARGUMENT, "so", trailers=trailers))
    with pytest.raises(InvalidArgument, match="so") as caught:
        await client.generate("a")
    assert caught.value.violations == ()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", "^this port is for HTTP, not for gRPC"),
        (b"<!DOCTYPE HTML>\n<html>", "^the program at this port does not speak gRPC"),  # Python's http.server
        (b"SSH-2.0-OpenSSH_9.6\r\n", "^the program at this port does not speak gRPC"),
    ],
)
async def test_a_port_for_another_protocol_is_named_as_such(answer: bytes, message: str) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        async with AttendantClient(f"127.0.0.1:{port}") as client:
            with pytest.raises(Unavailable, match=message):
                await client.health()


def pushback(milliseconds: int) -> tuple[tuple[str, str], ...]:
    return (("grpc-retry-pushback-ms", str(milliseconds)),)


@pytest.mark.parametrize(
    ("code", "is_transient"),
    [("UNAVAILABLE", True), ("RESOURCE_EXHAUSTED", True), ("INVALID_ARGUMENT", False), ("INTERNAL", False)],
)
async def test_only_transient_errors_are_retried(
    client: AttendantClient, server: Served, code: str, is_transient: bool
) -> None:
    server.seq2seq.failures.extend([Failure(grpc.StatusCode[code])] * 2)
    if is_transient:
        assert (await client.generate("a")).best.text == "A"
    else:
        with pytest.raises(AttendantError):
            await client.generate("a")
    assert len(server.seq2seq.requests) == (3 if is_transient else 1)


async def test_a_call_is_attempted_at_most_five_times(client: AttendantClient, server: Served) -> None:
    server.seq2seq.failures.extend([Failure(grpc.StatusCode.UNAVAILABLE, trailers=pushback(1))] * 9)
    with pytest.raises(Unavailable):
        await client.generate("a")
    assert len(server.seq2seq.requests) == 5


async def test_calls_to_an_address_without_a_server_are_unavailable(closed_target: str) -> None:
    async with AttendantClient(closed_target) as client:
        began = time.monotonic()
        with pytest.raises(Unavailable):
            await client.health()
        assert time.monotonic() - began < 1.0, "a health check is not retried"
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1"):
            await client.generate("a")


async def test_servers_of_one_name_take_turns() -> None:
    with served() as first, served() as other:
        addresses = [server.target.replace("localhost", "127.0.0.1") for server in (first, other)]
        async with AttendantClient("ipv4:" + ",".join(addresses)) as client:
            for _ in range(40):
                await client.generate("a")
            assert min(len(server.seq2seq.requests) for server in (first, other)) > 5


async def test_keepalive_detects_a_server_that_stops_responding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server sends its HTTP/2 greeting and then nothing. Its host still acknowledges packets."""
    monkeypatch.setattr("attendant_client.client.KEEPALIVE_MS", 500)

    loop = asyncio.get_running_loop()

    async def greeted(listener: socket.socket) -> socket.socket:
        """Returns the first connection. Later ones stay unaccepted, and end with the listener."""
        connection, _ = await loop.sock_accept(listener)
        # HTTP/2: SETTINGS, and the acknowledgement of the client's SETTINGS.
        await loop.sock_sendall(connection, b"\0\0\0\4\0\0\0\0\0\0\0\0\4\1\0\0\0\0")
        return connection

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        async with AttendantClient(f"127.0.0.1:{listener.getsockname()[1]}") as client:
            greeting = asyncio.create_task(greeted(listener))
            with pytest.raises(Unavailable):
                await client.health(timeout=20)
            with await greeting as connection:
                while await loop.sock_recv(connection, 1024):
                    pass  # until the client closes the connection


async def test_the_server_sets_the_retry_delay(client: AttendantClient, server: Served) -> None:
    server.seq2seq.failures.append(Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, trailers=pushback(400)))
    began = time.monotonic()
    await client.generate("a")
    assert time.monotonic() - began >= 0.4


async def test_the_deadline_holds_for_all_attempts_together(client: AttendantClient, server: Served) -> None:
    server.seq2seq.failures.extend([Failure(grpc.StatusCode.UNAVAILABLE, trailers=pushback(400))] * 9)
    with pytest.raises((DeadlineExceeded, Unavailable)):
        await client.generate("a", timeout=0.6)
    assert len(server.seq2seq.requests) <= 2
