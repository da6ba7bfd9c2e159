"""Measuring servers: what the kernel says of processes, the load generator, the switch to request-level batching."""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from attendant.runtime.decoding.options import DecodingOptions
from attendant.server.bench.load import Load
from attendant.server.engine.request import EngineRequest, Priority
from attendant.server.engine.scheduler import Budget
from attendant_client.v1 import seq2seq_pb2 as messages
from benchmarks.command import Context
from benchmarks.harness.measurement import Unavailable
from benchmarks.harness.process import cpu_seconds, resident_bytes, tree
from benchmarks.serving.overhead import request_parts
from benchmarks.serving.payloads import LENGTHS, generate_request, real_work
from benchmarks.serving.request_level import RequestLevelScheduler
from benchmarks.serving.servers import Server, empty_service, growth, load_generator, mean_of, running
from benchmarks.workload import QUICK

PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"


def test_a_process_tree_has_its_descendants_and_their_memory() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE) as process:
        give_up = time.monotonic() + 20
        while len(found := tree(process.pid)) < 2 and time.monotonic() < give_up:
            time.sleep(0.01)
        assert found[0].pid == process.pid and len(found) == 2
        assert resident_bytes(found) > resident_bytes(found[:1]) > 0
        assert process.stdin is not None
        process.stdin.close()
    assert cpu_seconds(found) == 0, "who has ended counts for nothing"


def test_processor_time_of_this_process() -> None:
    own = tree(os.getpid())
    before = cpu_seconds(own)
    give_up = time.monotonic() + 20
    while cpu_seconds(own) < before + 0.02:
        assert time.monotonic() < give_up


def test_the_mean_of_what_a_histogram_took_in_between() -> None:
    before, after = {"rows_count": 2.0, "rows_sum": 10.0}, {"rows_count": 4.0, "rows_sum": 40.0}
    assert mean_of("rows", growth(before, after)) == 15.0
    assert mean_of("rows", growth({}, after)) == 10.0


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


def tiny_server(bundle: Path, requests: list[bytes], program: str) -> Server:
    options = "--port", "0", "--metrics-port", "0", "--log-level", "warning"
    command = sys.executable, "-m", program, str(bundle), *options
    return Server(key="tiny", name="tiny", command=lambda: command, requests=requests)


@pytest.mark.parametrize("program", ["server", "benchmarks.serving.request_level"])
def test_a_server_under_each_kind_of_load(program: str, tiny: Path) -> None:
    requests = [messages.GenerateRequest(text=text).SerializeToString() for text in ("abc", "face", "jig")]
    with running(tiny_server(tiny, requests, program)) as server:
        closed, metrics = server.watched(Load(kind="closed", num_clients=3, seconds=60.0, num_requests=30))
        opened = server.load(Load(kind="open", rate=200.0, seconds=0.2))
        streamed = server.load(Load(kind="bulk", num_clients=4, seconds=60.0, num_requests=20))
        listed = server.load(Load(kind="list", seconds=60.0, num_requests=1))
        grown = server.load(Load(kind="stream", num_clients=3, seconds=60.0, num_requests=9))
        after = server.metrics()
        assert server.process.resident_bytes() > 0
    assert closed["answers"] == 30 and streamed["answers"] == 20
    assert listed["answers"] == 256 and grown["answers"] == 9 and grown["first_p50"] <= grown["p50"]
    assert closed["p50"] <= closed["p99"] and closed["cpu_ms"] >= 0
    assert after["attendant_requests_total"] == 50 + 256 + 9 + opened["answers"]
    assert mean_of("attendant_step_rows", metrics) == closed["step_rows"] >= 1 and 0 < closed["efficiency"] <= 1


def test_the_empty_service_answers_each_kind_of_call_also_at_the_same_time() -> None:
    bulk = Load(kind="bulk", num_clients=4, seconds=60.0, num_requests=20)
    service = empty_service([b"anything"])
    with running(service) as server, load_generator(server.addresses["serving"], service.requests) as other:
        other.ask(asdict(bulk))
        closed = server.load(Load(kind="closed", num_clients=3, seconds=60.0, num_requests=30))
        streamed = other.answer()
    assert closed["answers"] == 30 and len(streamed["latencies"]) == 20
    assert "step_rows" not in closed, "it has no metrics"


def test_a_refused_request_is_no_figure(tiny: Path) -> None:
    refused = [messages.GenerateRequest().SerializeToString()]
    with (
        running(tiny_server(tiny, refused, "server")) as server,
        pytest.raises(Unavailable, match=r"2 requests failed: .*INVALID_ARGUMENT"),
    ):
        server.load(Load(kind="closed", num_clients=1, seconds=60.0, num_requests=2))


def test_a_server_that_does_not_come_up_says_why_after_all_its_starts(tmp_path: Path) -> None:
    program = f"from pathlib import Path; print(file=Path({str(tmp_path / 'log')!r}).open('a')); exit('nothing there')"
    command = sys.executable, "-c", program
    server = Server(key="", name="", command=lambda: command, requests=[], max_starts=3)
    with pytest.raises(Unavailable, match="nothing there"), running(server):
        pass
    assert (tmp_path / "log").read_text() == "\n" * 3
    with pytest.raises(Unavailable, match="no such"), running(tiny_server(tmp_path / "no such", [], "server")):
        pass


def test_the_parts_of_a_requests_time_add_up() -> None:
    """Two requests: 10 ms each, of which 1 waiting, 2 in an encoding that they share and 6 in steps, 11 for clients."""
    sums = {"request": 0.020, "queue": 0.002, "encode": 0.004, "decode": 0.012}
    grown = {f"attendant_{name}_seconds_sum": value for name, value in sums.items()}
    grown |= {f"attendant_{name}_seconds_count": 2.0 for name in sums}
    spent = {"step": 0.005, "search": 0.001, "select": 0.0, "encode": 0.002, "admit": 0.0}
    grown |= {f"attendant_step_seconds_sum{{{phase}}}": value for phase, value in spent.items()}
    parts = request_parts(11.0, grown)
    assert sum(parts.values()) == pytest.approx(11.0)
    assert parts["its encoding"] == pytest.approx(2.0)
    assert parts["others are encoded meanwhile"] == pytest.approx(0.0)
    assert parts["steps: the graph"] == pytest.approx(5.0)


def test_real_work_has_the_lengths_of_real_sentences(tmp_path: Path) -> None:
    work = real_work(Context(workload=QUICK, cache=tmp_path))
    pairs = json.loads(LENGTHS.read_text(encoding="utf-8"))
    assert sorted((len(source), num_steps) for source, num_steps in work) == sorted(map(tuple, pairs))
