"""Unfinished messages."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import h2.exceptions
import pytest

from attendant.server.grpc import handlers
from attendant_client.v1 import seq2seq_pb2 as messages
from tests.faults.attacker import GENERATE, GENERATE_BATCH, RawConnection, framed
from tests.faults.conftest import Figure, Start
from tests.faults.figures import at_most
from tests.faults.witness import witness
from tests.serving import fake_stepper, served

MAX_UNREAD = 128
MAX_STREAMS = 128


@contextmanager
def unfinished(target: str, path: str, *, connections: int, streams: int, sent_bytes: int) -> Iterator[int]:
    """Makes calls whose messages stay incomplete; yields how many of the calls the server has ended."""
    message = framed(bytes(sent_bytes + 1))[:-1]
    with ExitStack() as stack:
        attackers = [stack.enter_context(RawConnection(target)) for _ in range(connections)]
        left: list[tuple[RawConnection, dict[int, bytes]]] = []
        for attacker in attackers:
            attacker.receive(0.2)
            left.append((attacker, {attacker.open_stream(path, flush=False): message for _ in range(streams)}))
        idle_since = time.monotonic()
        while time.monotonic() - idle_since < 0.5:
            for attacker, rest in left:
                for stream in list(rest):
                    try:
                        sent = attacker.send(stream, rest[stream], flush=False)
                    except h2.exceptions.ProtocolError:  # the server has ended the call
                        sent, rest[stream] = 0, b""
                    rest[stream] = rest[stream][sent:]
                    if sent:
                        idle_since = time.monotonic()
                    if not rest[stream]:
                        del rest[stream]
                attacker.flush()
                attacker.receive(0.005)
        yield sum(event.__class__.__name__ == "StreamEnded" for attacker in attackers for event in attacker.events)


def test_unfinished_calls_are_limited_and_others_are_served(start: Start) -> None:
    with start() as running, witness(running.target) as seen:
        for path, held, reason in (
            (GENERATE, MAX_UNREAD, "unread"),
            (GENERATE_BATCH, MAX_STREAMS // 2, "too_many_streams"),
        ):
            with unfinished(running.target, path, connections=2, streams=150, sent_bytes=20_000) as num_ended:
                # A call of the witness may take the place of one of the attacker's.
                assert 300 - held <= num_ended <= 300 - held + 1
                before = seen.num_calls
                while seen.num_calls < before + 5:
                    time.sleep(0.01)
                metrics = running.metrics()
                assert metrics[f'attendant_rejected_total{{"model": "", "reason": "{reason}"}}'] >= 300 - held
    assert set(seen.codes) == {"OK"}


async def test_many_messages_that_come_a_little_later_than_their_calls_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handlers, "YOUNG_SECONDS", 10.0)  # however busy this machine is
    async with served(fake_stepper(), max_waiting=1000) as running:
        request = framed(messages.GenerateRequest(text="ab"))

        def calls() -> int:
            with ExitStack() as stack:
                opened = [
                    (connection, [connection.open_stream(GENERATE, flush=False) for _ in range(90)])
                    for connection in (stack.enter_context(RawConnection(running.target)) for _ in range(3))
                ]
                for connection, _ in opened:
                    connection.flush()
                time.sleep(0.01)
                for connection, streams in opened:
                    for stream in streams:
                        connection.send(stream, request, end=True, flush=False)
                    connection.flush()
                for connection, streams in opened:
                    while sum(event.__class__.__name__ == "StreamEnded" for event in connection.events) < len(streams):
                        connection.receive(0.05)
                return sum(
                    "(b'grpc-status', b'0')" in str(event) for connection, _ in opened for event in connection.events
                )

        assert await asyncio.to_thread(calls) == 270 > 2 * MAX_UNREAD


async def test_callers_that_leave_before_their_message_count_as_no_refusal() -> None:
    async with served(fake_stepper()) as running:
        request = framed(messages.GenerateRequest(text="ab"))

        def attack() -> None:
            with RawConnection(running.target) as connection:
                for _ in range(90):
                    connection.send(connection.open_stream(GENERATE), request[:-1])
                connection.receive(0.2)

        for _ in range(5):
            await asyncio.to_thread(attack)
        assert (await running.stub.Generate(messages.GenerateRequest(text="ab"))).hypotheses
        await asyncio.sleep(0.2)
        assert running.sample("attendant_rejected_total", model="", reason="undecodable") == 0


@pytest.mark.reliability
def test_memory_alongside_5000_unfinished_calls_on_each_of_4_connections(start: Start, figure: Figure) -> None:
    for path, name in ((GENERATE, "unary calls"), (GENERATE_BATCH, "streams")):
        with start() as running:
            before = running.resident_mebibytes()
            peak = before
            with witness(running.target) as seen, ExitStack() as stack:
                for _ in range(5):
                    attack = unfinished(running.target, path, connections=4, streams=1000, sent_bytes=60_000)
                    stack.enter_context(attack)
                    peak = max(peak, running.resident_mebibytes())
            figure(
                f"memory more alongside 20,000 unfinished {name} of 60 kB on 20 connections",
                peak - before,
                at_most(128),
                "MiB",
            )
            figure(f"other calls that failed alongside unfinished {name}", seen.num_failed, at_most(0), "calls")
