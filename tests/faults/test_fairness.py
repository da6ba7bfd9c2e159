"""Clients: credentials, limits and fairness."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from attendant.server.bench.load import Load
from attendant_client.v1 import seq2seq_pb2 as messages
from tests.faults.conftest import Figure, Start
from tests.faults.figures import at_least, at_most, if_a_core_is_free
from tests.faults.load import Caller, caller, milliseconds
from tests.paths import ROOT
from tests.server_process import Running, server

EVERYWHERE = "--host", "::"
"""Options of a server that sees this machine as two clients: its IPv4 and its IPv6 address."""

MAX_SLOWDOWN = 3.0
SMALL_RATE = 40.0
SECONDS = 4.0
ROUNDS = 3
DEADLINE_SECONDS = 2.0


def small(word: str, beam_size: int = 1) -> messages.GenerateRequest:
    return messages.GenerateRequest(text=word, decoding=messages.DecodingOptions(beam_size=beam_size))


WORDS = "phoneme", "badge", "banana", "cat", "sequence", "onnx"
FLOODS = {
    "200 calls of beam 32": ([small(word, 32) for word in ("internationalization", "refrigerator")], 200),
    "64 greedy calls": ([small("internationalization" * 2), small("a")], 64),
}


@pytest.fixture(autouse=True)
def _needs_ipv6() -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("two clients on one machine are told apart by IPv4 and IPv6, and it has no IPv6")


def targets(running: Running) -> tuple[str, str]:
    """Returns the server's IPv4 and IPv6 targets; their callers are different clients to the server."""
    port = running.target.rpartition(":")[2]
    return f"127.0.0.1:{port}", f"[::1]:{port}"


def test_a_flood_of_one_client_leaves_room_for_another(start: Start) -> None:
    """Checks that a client's calls are admitted and answered, however many calls another client makes."""
    with start(*EVERYWHERE, "--max-rows", "4", "--max-waiting", "8") as running:
        flood_target, quiet_target = targets(running)
        with caller(flood_target, [small("badge", 4)]) as flood, caller(quiet_target, [small("badge")]) as quiet:
            flood.begin(Load(kind="closed", num_clients=100, num_requests=1000, seconds=60.0))
            answered = quiet.call(Load(kind="closed", num_clients=2, num_requests=20, seconds=60.0))
            assert answered.failures == [] and len(answered.latencies) == 20
            assert len(flood.end().latencies) > 0


@contextmanager
def _callers(running: Running) -> Iterator[tuple[Caller, dict[str, Caller]]]:
    """Yields a quiet caller, and the flooding callers by name."""
    flood_target, quiet_target = targets(running)
    with ExitStack() as exits:
        quiet = exits.enter_context(caller(quiet_target, [small(word) for word in WORDS]))
        floods = {name: exits.enter_context(caller(flood_target, requests)) for name, (requests, _) in FLOODS.items()}
        for flood in floods.values():
            flood.give_way()
        yield quiet, floods


@pytest.mark.reliability
@pytest.mark.timeout(300)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_small_call_alongside_a_flood_is_answered_soon(workers: int, figure: Figure) -> None:
    """Compares the p99 of another client's small calls, 40 a second, with that without a flood.

    During the flood, the small calls have deadlines of 2 s.
    """
    options = *EVERYWHERE, "--workers", str(workers), "--log-level", "warning"
    with (
        server(str(ROOT / "models" / "g2p-en"), *options) as running,
        _callers(running) as (quiet, floods),
    ):
        alone = Load(kind="open", rate=SMALL_RATE, seconds=SECONDS)
        alongside = Load(kind="open", rate=SMALL_RATE, seconds=SECONDS, timeout_seconds=DEADLINE_SECONDS)
        quiet.call(alone)
        for name, flood in floods.items():
            clients = FLOODS[name][1]
            flood.call(Load(kind="closed", num_clients=clients, seconds=2.0))
            idle, flooded, num_failed = list[float](), list[float](), 0
            for _ in range(ROUNDS):
                idle += quiet.call(alone).latencies
                flood.begin(Load(kind="closed", num_clients=clients, seconds=SECONDS + 1.0))
                time.sleep(0.5)  # until the flood has begun
                answered = quiet.call(alongside)
                flood.end()
                flooded += answered.latencies
                num_failed += len(answered.failures)
            of = f"alongside {name}, {workers} worker{'s' * (workers > 1)}"
            share = len(flooded) / (len(flooded) + num_failed)
            figure(f"answered in 2 s {of}", share, at_least(1.0), "of the small calls")
            idle_ms = milliseconds(idle, 99)
            slowdown = milliseconds(flooded, 99) / idle_ms
            bound = if_a_core_is_free(workers, at_most(MAX_SLOWDOWN))
            figure(f"small call's p99 {of}", slowdown, bound, f"x its idle {idle_ms:.1f} ms")
