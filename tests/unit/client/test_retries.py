"""The service config at work: what is tried again, when, and for how long."""

import asyncio
import time

import grpc
import pytest

from attendant_client import AttendantClient, AttendantError, DeadlineExceeded, Unavailable
from tests.unit.client.fake_server import Failure, Served, served


def pushback(milliseconds: int) -> tuple[tuple[str, str], ...]:
    return (("grpc-retry-pushback-ms", str(milliseconds)),)


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED], ids=str)
async def test_what_passes_is_tried_again(client: AttendantClient, server: Served, code: grpc.StatusCode) -> None:
    server.seq2seq.failures.extend([Failure(code), Failure(code)])
    assert (await client.generate("a")).best.text == "A"
    assert len(server.seq2seq.requests) == 3


async def test_the_server_says_when(client: AttendantClient, server: Served) -> None:
    server.seq2seq.failures.append(Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, trailers=pushback(400)))
    began = time.monotonic()
    await client.generate("a")
    assert time.monotonic() - began >= 0.4


async def test_the_server_says_never(client: AttendantClient, server: Served) -> None:
    server.seq2seq.failures.append(Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, trailers=pushback(-1)))
    with pytest.raises(AttendantError):
        await client.generate("a")
    assert len(server.seq2seq.requests) == 1


@pytest.mark.parametrize("code", [grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL], ids=str)
async def test_what_would_fail_again_is_not_tried_again(
    client: AttendantClient, server: Served, code: grpc.StatusCode
) -> None:
    server.seq2seq.failures.append(Failure(code))
    with pytest.raises(AttendantError):
        await client.generate("a")
    assert len(server.seq2seq.requests) == 1


async def test_five_attempts_and_no_more(client: AttendantClient, server: Served) -> None:
    server.seq2seq.failures.extend([Failure(grpc.StatusCode.UNAVAILABLE, trailers=pushback(1))] * 9)
    with pytest.raises(Unavailable):
        await client.generate("a")
    assert len(server.seq2seq.requests) == 5


async def test_the_deadline_holds_for_all_attempts_together(client: AttendantClient, server: Served) -> None:
    server.seq2seq.failures.extend([Failure(grpc.StatusCode.UNAVAILABLE, trailers=pushback(200))] * 9)
    began = time.monotonic()
    with pytest.raises((DeadlineExceeded, Unavailable)):
        await client.generate("a", timeout=0.3)
    assert time.monotonic() - began < 0.7


async def test_a_deadline(client: AttendantClient) -> None:
    await client.models()
    began = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        await client.generate("slow", timeout=0.05)
    assert time.monotonic() - began < 0.19


async def test_nobody_there(closed_target: str) -> None:
    async with AttendantClient(closed_target) as client:
        began = time.monotonic()
        with pytest.raises(Unavailable):
            await client.health()
        assert time.monotonic() - began < 1.0, "a health check is not retried"
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1"):
            await client.generate("a")


async def test_servers_of_one_name_take_turns() -> None:
    with served() as one, served() as other:
        addresses = [server.target.replace("localhost", "127.0.0.1") for server in (one, other)]
        async with AttendantClient("ipv4:" + ",".join(addresses)) as client:
            for _ in range(40):
                await client.generate("a")
            assert min(len(server.seq2seq.requests) for server in (one, other)) > 5


async def test_a_server_that_has_vanished_without_a_word_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has greeted, and says nothing any more. Its host still tells ours that all has arrived, pings too."""
    monkeypatch.setattr("attendant_client.channel.KEEPALIVE_MS", 500)

    gone = asyncio.Event()

    class Vanished(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.WriteTransport)
            if gone.is_set():  # the client tries again, and the test is over
                transport.abort()
            transport.write(b"\0\0\0\4\0\0\0\0\0\0\0\0\4\1\0\0\0\0")  # HTTP/2: SETTINGS, and that it has ours

        def connection_lost(self, exc: Exception | None) -> None:
            gone.set()

    listening = await asyncio.get_running_loop().create_server(Vanished, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    async with listening, AttendantClient(f"127.0.0.1:{port}") as client:
        with pytest.raises(Unavailable):
            await client.health(timeout=20)
        await gone.wait()
