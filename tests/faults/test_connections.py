"""Connections: reset storms, idle and half-open ones."""

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import grpc
import h2.events
import hpack
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from attendant.server.grpc import port as listening
from attendant_client import BlockingClient
from attendant_client.v1 import seq2seq_pb2 as messages
from attendant_client.v1 import seq2seq_pb2_grpc
from tests.faults.attacker import GENERATE, RawConnection, frame
from tests.faults.conftest import Figure, Start
from tests.faults.figures import at_most
from tests.faults.witness import witness
from tests.serving import fake_stepper, served

HEADERS, RST_STREAM, PING = 1, 3, 6
END_HEADERS = 4
CANCEL = 8
PIECE = 200


def resets(streams: Iterator[int] | range) -> bytes:
    """Returns the frames of calls that are each reset at once."""
    encoder = hpack.Encoder()
    encoder.header_table_size = 0  # the same block serves all calls
    header = {":method": "POST", ":scheme": "http", ":path": GENERATE, ":authority": "x", "te": "trailers"}
    encoder.encode(header)
    block = encoder.encode(header | {"content-type": "application/grpc"})
    return b"".join(
        frame(HEADERS, block, flags=END_HEADERS, stream=stream)
        + frame(RST_STREAM, struct.pack(">I", CANCEL), stream=stream)
        for stream in streams
    )


@contextmanager
def storm(target: str, make: Callable[[int], bytes], *, connections: int) -> Iterator[list[int]]:
    """Sends `make(0)`, `make(1)`, ... on each connection as fast as the server reads; yields how many were sent."""
    sent = [0] * connections
    ending = threading.Event()

    def attack(number: int) -> None:
        with RawConnection(target) as connection:
            connection.receive(0.2)
            connection.socket.setblocking(False)
            rest = b""
            while not ending.is_set():
                rest = rest or make(sent[number])
                try:
                    rest = rest[connection.socket.send(rest) :]
                except BlockingIOError:
                    time.sleep(0.001)
                except ConnectionError:
                    return
                try:
                    while connection.socket.recv(1 << 16):
                        pass
                except BlockingIOError:
                    pass
                except ConnectionError:
                    return
                sent[number] += not rest

    threads = [threading.Thread(target=attack, args=(number,)) for number in range(connections)]
    for thread in threads:
        thread.start()
    try:
        yield sent
    finally:
        ending.set()
        for thread in threads:
            thread.join()


def reset_storm(number: int) -> bytes:
    first = 1 + 2 * PIECE * number
    return resets(range(first, first + 2 * PIECE, 2))


def test_other_callers_are_answered_during_a_storm_of_resets(start: Start) -> None:
    with (
        start("--max-calls-per-connection", "50") as running,
        storm(running.target, reset_storm, connections=2) as sent,
        witness(running.target) as seen,
    ):
        while seen.num_calls < 5 or min(sent) < 5:
            time.sleep(0.01)
    assert set(seen.codes) == {"OK"}


def test_connections_that_are_too_many_are_closed_and_others_served(start: Start) -> None:
    with ExitStack() as stack:
        running = stack.enter_context(start("--max-connections", "10"))
        channel = stack.enter_context(grpc.insecure_channel(running.target))
        stub = seq2seq_pb2_grpc.Seq2SeqStub(channel)
        stub.Generate(messages.GenerateRequest(text="badge"), timeout=20)
        before = running.num_descriptors()
        attackers = [stack.enter_context(RawConnection(running.target)) for _ in range(30)]
        give_up = time.monotonic() + 20
        while sum(attacker.closed for attacker in attackers) < 21 and time.monotonic() < give_up:
            for attacker in attackers:
                attacker.receive(0.01)
        assert sum(not attacker.closed for attacker in attackers) == 9
        assert running.num_descriptors() <= before + 9
        stub.Generate(messages.GenerateRequest(text="badge"), timeout=20)
        # The newcomer's connection may be closed, too, before its call arrives: a client then tries again.
        newcomer = stack.enter_context(BlockingClient(running.target, timeout=20))
        assert newcomer.generate("badge").best.tokens


@pytest.mark.parametrize("opening", [b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"], ids=["nothing", "the preface"])
async def test_a_connection_without_a_handshake_is_closed(monkeypatch: pytest.MonkeyPatch, opening: bytes) -> None:
    shorter(monkeypatch, "grpc.server_handshake_timeout_ms", 200)
    async with served(fake_stepper()) as running:
        host, port = running.target.split(":")

        def attack() -> None:
            with socket.create_connection((host, int(port)), timeout=20) as connection:
                connection.sendall(opening)
                while connection.recv(1 << 16):
                    pass

        await asyncio.to_thread(attack)


async def test_a_connection_without_calls_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    shorter(monkeypatch, "grpc.max_connection_idle_ms", 200)
    async with served(fake_stepper()) as running:
        await asyncio.to_thread(until_closed, running.target)


async def test_a_peer_that_answers_no_ping_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    shorter(monkeypatch, "grpc.keepalive_time_ms", 1000)
    shorter(monkeypatch, "grpc.http2.ping_timeout_ms", 200)
    async with served(fake_stepper()) as running:

        def attack() -> None:
            with RawConnection(running.target) as connection:
                connection.receive(0.1)
                connection.open_stream(GENERATE)
                while connection.socket.recv(1 << 16):
                    pass

        await asyncio.to_thread(attack)


async def test_a_client_that_pings_too_often_is_disconnected() -> None:
    async with served(fake_stepper()) as running:

        def attack() -> RawConnection:
            with RawConnection(running.target) as connection:
                while not connection.closed:
                    connection.socket.sendall(frame(PING, b"12345678"))
                    connection.receive(0.01)
                return connection

        attacker = await asyncio.to_thread(attack)
        ends = [event for event in attacker.events if isinstance(event, h2.events.ConnectionTerminated)]
    assert any(event.additional_data == b"too_many_pings" for event in ends)


async def test_names_of_unknown_services_are_not_kept() -> None:
    async with served(fake_stepper()) as running:
        stub = health_pb2_grpc.HealthStub(running.channel)
        for number in range(5):
            watch = stub.Watch(health_pb2.HealthCheckRequest(service=f"none-{number}"), timeout=20)
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
            watch.cancel()
        assert len(running.lifecycle.health._server_watchers) <= 3


@pytest.mark.reliability
def test_a_storm_of_resets(start: Start, figure: Figure) -> None:
    with start() as running:
        before = peak = running.resident_mebibytes()
        with storm(running.target, reset_storm, connections=4) as sent, witness(running.target) as seen:
            began = time.monotonic()
            while (seconds := time.monotonic() - began) < 20:
                peak = max(peak, running.resident_mebibytes())
                time.sleep(0.1)
            per_second = PIECE * sum(sent) / seconds
        figure("resets a second, sent on 4 connections", per_second, None, "")
        figure("other calls that failed meanwhile", seen.num_failed, at_most(0), "calls")
        figure("the longest of them", max(seen.seconds), at_most(20), "s")
        figure("memory more", peak - before, at_most(512), "MiB")


@pytest.mark.reliability
def test_connections_that_never_begin(start: Start, figure: Figure) -> None:
    with start() as running, ExitStack() as stack:
        host, port = running.target.split(":")
        before = running.num_descriptors()
        for _ in range(500):
            stack.enter_context(socket.create_connection((host, int(port))))
        with witness(running.target) as seen:
            while running.num_descriptors() < before + 400:
                time.sleep(0.1)
            began = time.monotonic()
            while running.num_descriptors() > before + 10:
                time.sleep(0.1)
        figure("500 silent connections: closed after", time.monotonic() - began, at_most(15), "s")
        figure("other calls that failed alongside those", seen.num_failed, at_most(0), "calls")


def shorter(monkeypatch: pytest.MonkeyPatch, option: str, milliseconds: int) -> None:
    """Sets one of the server's durations."""
    assert option in dict(listening.OPTIONS)
    monkeypatch.setattr(listening, "OPTIONS", (*(dict(listening.OPTIONS) | {option: milliseconds}).items(),))


def until_closed(target: str) -> None:
    with RawConnection(target) as connection:
        while not connection.closed:
            connection.receive(0.05)
