"""Tests of measuring servers: processes, the load generator, figures of loads."""

import itertools
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import pytest

from attendant.runtime.decoding.batch import decode_all
from attendant.runtime.decoding.options import DecodingOptions
from attendant.server.bench.load import Load
from attendant.server.engine.scheduler import Scheduler
from attendant_client.v1 import seq2seq_pb2 as messages
from benchmarks.harness import Unavailable
from benchmarks.own_worker import RequestLevelScheduler
from benchmarks.servers import Server, empty_service, load_generator, mean_of, running
from benchmarks.serving import TimedStepper, modelled, rate_at, request_parts
from tests.fakes import SPECIAL_IDS, FakeStepper


def tiny_server(bundle: Path, requests: list[bytes]) -> Server:
    arguments = [str(bundle), "--port", "0", "--metrics-port", "0", "--log-level", "warning"]
    command = [sys.executable, "-m", "server", *arguments]
    return Server(name="tiny", command=lambda: command, requests=requests)


def test_each_kind_of_load_is_measured(tiny_bundle_path: Path) -> None:
    requests = [messages.GenerateRequest(text=text).SerializeToString() for text in ("abc", "face", "jig")]
    with running(tiny_server(tiny_bundle_path, requests)) as server:
        closed = server.load(Load(kind="closed", num_clients=3, seconds=60.0, num_requests=30))
        opened = server.load(Load(kind="open", rate=200.0, seconds=0.2))
        bulk = server.load(Load(kind="bulk", num_clients=4, seconds=60.0, num_requests=20))
        lists = server.load(Load(kind="bulk-lists", num_clients=4, seconds=60.0, num_requests=1))
        listed = server.load(Load(kind="list", seconds=60.0, num_requests=1))
        streamed = server.load(Load(kind="stream", num_clients=3, seconds=60.0, num_requests=9))
        after = server.metrics()
    answers = [each["answers"] for each in (closed, bulk, lists, listed, streamed)]
    assert answers == [30, 20, 64, 256, 9]
    assert streamed["first_p50"] <= streamed["p50"] and closed["p50"] <= closed["p99"] and closed["cpu_ms"] >= 0
    assert after["attendant_requests_total"] == sum(answers) + opened["answers"]
    assert mean_of("attendant_step_rows", closed) == closed["step_rows"] >= 1 and 0 < closed["efficiency"] <= 1


def test_the_empty_service_answers_each_kind_of_call_also_at_the_same_time() -> None:
    service = empty_service([b"anything"])
    with running(service) as server, load_generator(server.addresses["serving"], service.requests) as other:
        other.ask(asdict(Load(kind="bulk", num_clients=4, seconds=60.0, num_requests=20)))
        closed = server.load(Load(kind="closed", num_clients=3, seconds=60.0, num_requests=30))
        bulk = other.answer()
    assert closed["answers"] == 30 and len(bulk["latencies"]) == 20
    assert "step_rows" not in closed, "it has no metrics"
    with running(empty_service([b"anything"], refuses=True)) as server, pytest.raises(Unavailable, match="no room"):
        server.load(Load(kind="closed", seconds=60.0, num_requests=1))


def test_the_parts_of_a_requests_time_add_up() -> None:
    """Two requests of 10 ms: 1 ms in the queue, 2 ms in a shared encoding, 6 ms in steps. Clients measure 11 ms."""
    sums = {"request": 0.020, "queue": 0.002, "encode": 0.004, "decode": 0.012}
    growth = {f"attendant_{name}_seconds_sum": value for name, value in sums.items()}
    growth |= {f"attendant_{name}_seconds_count": 2.0 for name in sums}
    spent = {"step": 0.005, "search": 0.001, "select": 0.0, "encode": 0.002, "admit": 0.0}
    growth |= {f"attendant_step_seconds_sum{{{phase}}}": value for phase, value in spent.items()}
    parts = request_parts(11.0, growth)
    assert sum(parts.values()) == pytest.approx(11.0)
    assert parts["its encoding"] == pytest.approx(2.0)
    assert parts["others are encoded meanwhile"] == pytest.approx(0.0)
    assert parts["steps: the graph"] == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("latency", "rate"),
    [(5.0, None), (10.0, 100.0), (15.0, 150.0), (20.0, 200.0), (30.0, 220.0), (70.0, 300.0), (999.0, 300.0)],
)
def test_the_highest_load_below_a_latency_is_interpolated(latency: float, rate: float | None) -> None:
    assert rate_at([(100.0, 10.0), (200.0, 20.0), (300.0, 70.0)], latency) == (rate and pytest.approx(rate))
    assert rate_at([], latency) is None


def test_one_disturbed_visit_does_not_decide_the_highest_load() -> None:
    quiet = [(100.0, 50.0), (150.0, 60.0), (200.0, 80.0), (250.0, 100.0), (300.0, 300.0)]
    disturbed = [(load, 260.0 if load == 150.0 else measured) for load, measured in quiet]
    assert rate_at(quiet, 250.0) == pytest.approx(287.5)
    # Latencies that fall as the load rises are replaced with their mean: 260, 80 and 100 become 440 / 3 each.
    assert rate_at(disturbed, 250.0) == pytest.approx(250 + 50 * (250 - 440 / 3) / (300 - 440 / 3))
    assert rate_at([(100.0, 300.0), (200.0, 100.0), (300.0, 400.0)], 250.0) == pytest.approx(225.0)
    assert rate_at([(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)], 2.0) == 3.0


WORK = [([5, 6, 7, 3], 30)]


def seconds_of_calls() -> Callable[[], float]:
    """Returns a clock that moves by one second between two readings."""
    return itertools.count().__next__


def test_modelled_requests_that_never_meet_take_the_time_of_their_calls() -> None:
    timed = TimedStepper(FakeStepper(vocabulary_size=200), seconds_of_calls())
    ((source, num_steps),) = WORK
    decode_all(cast(Any, timed), [source], DecodingOptions(max_length=num_steps - 1), SPECIAL_IDS)
    alone = modelled(FakeStepper(vocabulary_size=200), SPECIAL_IDS, WORK, 1e-6, 20, Scheduler, seconds_of_calls())
    assert timed.now > 1 and alone == pytest.approx((1e3 * timed.now, 1e3 * timed.now))


def test_modelled_requests_that_meet_wait_for_one_another() -> None:
    alone, step, request = (
        modelled(FakeStepper(vocabulary_size=200), SPECIAL_IDS, WORK, rate, 60, scheduler, seconds_of_calls())
        for rate, scheduler in ((1e-6, Scheduler), (0.03, Scheduler), (0.03, RequestLevelScheduler))
    )
    assert alone[0] < step[0] < request[0], "a newcomer joins before the running requests have ended"
