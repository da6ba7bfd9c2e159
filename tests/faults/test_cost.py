"""Cost of the safe defaults."""

from contextlib import ExitStack
from statistics import median

import pytest

from attendant.server.bench.load import Answered, Load
from attendant_client.v1 import seq2seq_pb2 as messages
from tests.faults.conftest import Figure
from tests.faults.figures import at_least, at_most
from tests.faults.load import caller
from tests.paths import ROOT
from tests.server_process import server

MAX_COST = 0.03
ROUNDS = 5
NO_LIMITS = "--max-connections=100000", "--max-calls-per-connection=100000", "--light-rows=256", "--hang-seconds=3600"
WORDS = [messages.GenerateRequest(text=word) for word in ("phoneme", "badge", "banana", "cat", "sequence", "onnx")]


@pytest.mark.reliability
def test_the_default_guards_cost_little_speed(figure: Figure) -> None:
    """Calls two servers in turns: one with the defaults, one without guards and limits."""
    with ExitStack() as exits:
        bundle = str(ROOT / "models" / "g2p-en")
        running = (
            exits.enter_context(server(bundle)),
            exits.enter_context(server(bundle, *NO_LIMITS, program="tests.faults.bare_server")),
        )
        guarded, bare = (exits.enter_context(caller(process.target, WORDS)) for process in running)
        rates, times = list[float](), list[float]()
        for number in range(ROUNDS):
            answers: dict[bool, tuple[Answered, Answered]] = {}
            # The server that is called first alternates, since the host's speed changes.
            for load_caller in (guarded, bare) if number % 2 else (bare, guarded):
                many = load_caller.call(Load(kind="closed", num_clients=64, seconds=4.0))
                answers[load_caller is guarded] = many, load_caller.call(Load(kind="closed", seconds=1.5))
            (with_all, with_one), (without_all, without_one) = answers[True], answers[False]
            rates.append(_rate(with_all) / _rate(without_all))
            times.append(median(with_one.latencies) / median(without_one.latencies))
    figure("answers to 64 clients, over those without guards", median(rates), at_least(1 - MAX_COST), "times as many")
    figure("time of a lone request, over that without guards", median(times), at_most(1 + MAX_COST), "times as long")


def _rate(answered: Answered) -> float:
    assert not answered.failures
    return len(answered.latencies) / answered.seconds
