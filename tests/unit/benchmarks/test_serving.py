"""Measuring servers: what the kernel says of processes, the load generator, the switch to request-level batching."""

import base64
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attendant.runtime.decoding.options import DecodingOptions
from attendant.server.engine.queueing.scheduler import Budget
from attendant.server.engine.request import EngineRequest, Priority
from attendant_client.v1 import seq2seq_pb2 as messages
from benchmarks.serving.attendant_server import BULK, UNARY, generate_request, write_payloads
from benchmarks.serving.generator import Load
from benchmarks.serving.load import LoadGenerator
from benchmarks.serving.overhead import empty_service
from benchmarks.serving.processes import cpu_seconds, resident_bytes, tree
from benchmarks.serving.request_level import RequestLevelScheduler
from benchmarks.serving.served import Served, ServedSystem, ServerFailed, mean_between

PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"


def test_a_process_tree_has_its_descendants_and_their_memory() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE) as process:
        give_up = time.monotonic() + 20
        while len(found := tree(process.pid)) < 2 and time.monotonic() < give_up:
            time.sleep(0.01)
        assert found[0] == process.pid and len(found) == 2
        assert resident_bytes(found) > resident_bytes(found[:1]) > 0
        assert process.stdin is not None
        process.stdin.close()
    assert cpu_seconds(found) == 0, "who has ended counts for nothing"


def test_processor_time_of_this_process() -> None:
    before = cpu_seconds([os.getpid()])
    give_up = time.monotonic() + 20
    while cpu_seconds([os.getpid()]) < before + 0.02:
        assert time.monotonic() < give_up


def test_the_mean_of_what_a_histogram_took_in_between() -> None:
    before, after = {"rows_count": 2.0, "rows_sum": 10.0}, {"rows_count": 4.0, "rows_sum": 40.0}
    assert mean_between("rows", before, after) == 15.0
    assert mean_between("rows", {}, after) == 10.0


def test_requests_ask_for_as_many_steps_as_said() -> None:
    request = messages.GenerateRequest.FromString(generate_request([4, 5, 3], 7, beam_size=2))
    assert request.text == "w4 w5"
    assert (request.decoding.max_length, request.decoding.beam_size) == (6, 2)


def test_nobody_joins_a_batch_that_runs() -> None:
    scheduler = RequestLevelScheduler(Budget(max_rows=8, max_source_positions=512))
    for key in range(2):
        scheduler.add(request(key))
    assert [one.key for one in scheduler.admit(Priority.INTERACTIVE)] == [0, 1]
    scheduler.add(request(2))
    scheduler.remove(0)
    assert scheduler.admit(Priority.INTERACTIVE) == []
    scheduler.remove(1)
    assert [one.key for one in scheduler.admit(Priority.INTERACTIVE)] == [2]


def request(key: int) -> EngineRequest:
    return EngineRequest(key=key, source_ids=(4, 3), options=DecodingOptions(max_length=4), submitted=0.0)


def tiny_server(bundle: Path, payloads: Path, *program: str) -> ServedSystem:
    return ServedSystem(
        name="tiny",
        command=(
            *(sys.executable, "-m", *program, str(bundle)),
            *("--port", "0", "--metrics-port", "0", "--log-level", "warning"),
        ),
        method=UNARY,
        payloads=payloads,
    )


@pytest.mark.parametrize("program", ["server", "benchmarks.serving.request_level"])
def test_a_server_under_each_kind_of_load(program: str, tiny: Path, tmp_path: Path) -> None:
    requests = [messages.GenerateRequest(text=text).SerializeToString() for text in ("abc", "face", "jig")]
    payloads = write_payloads(tmp_path / "payloads.txt", requests)
    assert [base64.b64decode(line) for line in payloads.read_text().splitlines()] == requests
    with Served(tiny_server(tiny, payloads, program)) as served:
        before = served.metrics()
        with LoadGenerator(served) as unary, LoadGenerator(served, UNARY + "Batch") as bulk:
            closed = unary.run(Load(kind="closed", num_clients=3, seconds=60.0, num_requests=30))
            opened = unary.run(Load(kind="open", rate=200.0, seconds=0.2))
            streamed = bulk.run(Load(kind="bulk", num_clients=4, seconds=60.0, num_requests=20))
        after = served.metrics()
        assert served.resident_bytes() > 0
    assert closed.num_answered == 30 and streamed.num_answered == 20
    assert closed.latency(50) <= closed.latency(99) and closed.server_cpu_seconds >= 0
    answered = after["attendant_requests_total"] - before.get("attendant_requests_total", 0.0)
    assert answered == 50 + opened.num_answered
    assert mean_between("attendant_step_rows", before, after) >= 1


def test_the_empty_service_answers_each_kind_of_call(tmp_path: Path) -> None:
    payloads = write_payloads(tmp_path / "payloads.txt", [b"anything"])
    with (
        Served(empty_service(payloads)) as served,
        LoadGenerator(served) as unary,
        LoadGenerator(served, BULK) as bulk,
    ):
        closed = unary.run(Load(kind="closed", num_clients=3, seconds=60.0, num_requests=30))
        streamed = bulk.run(Load(kind="bulk", num_clients=4, seconds=60.0, num_requests=20))
    assert closed.num_answered == 30 and streamed.num_answered == 20


def test_a_refused_request_is_no_figure(tiny: Path, tmp_path: Path) -> None:
    payloads = write_payloads(tmp_path / "payloads.txt", [messages.GenerateRequest().SerializeToString()])
    with (
        Served(tiny_server(tiny, payloads, "server")) as served,
        LoadGenerator(served) as generator,
        pytest.raises(ServerFailed, match="2 requests failed: INVALID_ARGUMENT"),
    ):
        generator.run(Load(kind="closed", num_clients=1, seconds=60.0, num_requests=2))


def test_a_server_that_does_not_come_up_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(ServerFailed, match="nothing there"),
        Served(tiny_server(tmp_path / "nothing there", tmp_path, "server")),
    ):
        pass
