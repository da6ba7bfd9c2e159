"""Tests of shares: a client's streams, watches and unread answers leave room for other clients."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from h2.settings import SettingCodes

from attendant.server.auth import Access, Shares, open_access
from attendant.server.errors import TooManyStreams
from attendant.server.grpc import handlers
from attendant.server.grpc.handlers import Bounds
from attendant_client.v1 import seq2seq_pb2 as messages
from tests.configuration import parse_config
from tests.faults.attacker import GENERATE, RawConnection, framed
from tests.serving import PATIENCE_SECONDS, Served, eventually, fake_stepper, served

REQUEST = messages.GenerateRequest(text="ab")
NUM_CALLS = 30


@pytest.fixture
def access(tmp_path: Path) -> Access:
    """Returns the access of two clients; a token is the client's name, four times."""
    digests = {name: hashlib.sha256((name * 4).encode()).hexdigest() for name in ("first", "second")}
    file = tmp_path / "tokens"
    file.write_text("".join(f"{name} sha256:{digest}\n" for name, digest in digests.items()))
    return open_access(parse_config(["bundle", "--tokens", str(file)], {}))


def of(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name * 4}"}


def test_a_client_has_as_many_places_as_are_free() -> None:
    shares, places = Shares(8), {name: ExitStack() for name in "abc"}

    def takes(name: str) -> bool:
        with suppress(TooManyStreams):
            places[name].enter_context(shares.place(name, TooManyStreams))
            return True
        return False

    assert [takes("a") for _ in range(6)] == [True] * 4 + [False] * 2
    assert [takes("b") for _ in range(3)] == [True] * 2 + [False]
    assert [takes("c") for _ in range(2)] == [True, False]
    places["a"].close()
    assert [takes("c") for _ in range(3)] == [True, True, False]


async def opens(server: Served, name: str) -> bool:
    """Begins a bulk stream, which stays open; returns False if it is refused.

    If the write fails before the server's status is read, grpc reports INTERNAL instead of that status.
    """
    call = server.stub.GenerateBatch(metadata=tuple(of(name).items()))
    try:
        await call.write(REQUEST)
        await call.read()
    except grpc.aio.AioRpcError as error:
        assert error.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INTERNAL)
        return False
    return True


async def test_one_token_does_not_take_all_streams_and_watches_take_none(access: Access) -> None:
    async with served(fake_stepper(), access=access, bounds=Bounds(max_streams=8, max_watches=4)) as server:
        health = health_pb2_grpc.HealthStub(server.channel)
        watches = [health.Watch(health_pb2.HealthCheckRequest()) for _ in range(6)]
        read = await asyncio.gather(*(watch.read() for watch in watches), return_exceptions=True)
        assert sum(isinstance(outcome, grpc.aio.AioRpcError) for outcome in read) == 4
        assert [await opens(server, "first") for _ in range(8)] == [True] * 4 + [False] * 4
        unwritten = server.stub.GenerateBatch(metadata=tuple(of("first").items()))
        assert await unwritten.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await opens(server, "second")
        for watch in watches:
            watch.cancel()


async def test_a_stream_without_requests_ends() -> None:
    async with served(fake_stepper(), bounds=Bounds(idle_seconds=0.3)) as server:
        idle = server.stub.GenerateBatch()

        async def requests() -> AsyncIterator[messages.GenerateRequest]:
            for _ in range(6):
                yield REQUEST
                await asyncio.sleep(0.1)

        assert len([answer async for answer in server.stub.GenerateBatch(requests())]) == 6
        assert await asyncio.wait_for(idle.code(), PATIENCE_SECONDS) is grpc.StatusCode.UNAVAILABLE
        assert "nothing came on this stream" in await idle.details()


def never_read(target: str, seconds: float) -> tuple[list[str], bool]:
    """Makes calls and reads no answers; returns the events of refused calls, and True if the server hung up."""
    with RawConnection(target) as connection:
        connection.http2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
        connection.flush()
        connection.receive(0.3)
        for _ in range(NUM_CALLS):
            connection.send(connection.open_stream(GENERATE, of("first")), framed(REQUEST), end=True)
        events = connection.receive(seconds)
        return [str(event) for event in events if "b'grpc-status', b'8'" in str(event)], connection.closed


async def test_unread_answers_of_one_client_are_bounded_and_counted(access: Access) -> None:
    async with served(fake_stepper(), access=access, max_answer_bytes=3_000) as server:
        attack = asyncio.create_task(asyncio.to_thread(never_read, server.target, 2.0))
        await eventually(lambda: server.sample("attendant_rejected_total", model="", reason="too_many_unread") > 0)
        held = server.sample("attendant_bulk_answers_bytes", model="")
        assert 0 < held <= 1_500, "half of it at most"
        await server.stub.Generate(REQUEST, metadata=tuple(of("second").items()))
        refused, _ = await attack
        assert 0 < len(refused) < NUM_CALLS
        await eventually(lambda: server.sample("attendant_bulk_answers_bytes", model="") == 0)


async def test_a_connection_that_leaves_a_large_answer_unread_is_closed(
    access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handlers, "LARGE_BYTES", 10)
    async with served(fake_stepper(), access=access, unread_seconds=0.5) as server:
        _, is_closed = await asyncio.to_thread(never_read, server.target, PATIENCE_SECONDS)
        assert is_closed
        await eventually(lambda: server.sample("attendant_bulk_answers_bytes", model="") == 0)
