"""A hung engine and poisoned requests."""

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from attendant_client.v1 import seq2seq_pb2 as messages
from attendant_client.v1 import seq2seq_pb2_grpc
from tests.faults.breakable_server import Break
from tests.faults.conftest import Figure, Start
from tests.faults.figures import at_least, at_most
from tests.server_process import Running, server

PROGRAM = "tests.faults.breakable_server"
NO_RETRIES = [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]
GAUGES = ("requests_waiting", "requests_running", "rows_running")
TIMEOUT = 300.0
RESTARTS = 'attendant_engine_restarts_total{"model": "tiny"}'
SHORT_DELAYS = "MAX_DELAY_SECONDS", "0.05"
"""Variable of the server's environment; tests/unit/server/engine/test_supervision.py tests the delays of restarts."""


@contextmanager
def connected(running: Running) -> Iterator[seq2seq_pb2_grpc.Seq2SeqStub]:
    with grpc.insecure_channel(running.target, NO_RETRIES) as channel:
        yield seq2seq_pb2_grpc.Seq2SeqStub(channel)


def ask(stub: seq2seq_pb2_grpc.Seq2SeqStub, text: str = "badge", request_id: str = "") -> grpc.Future:
    decoding = messages.DecodingOptions(beam_size=2, min_length=20, max_length=20)
    request = messages.GenerateRequest(text=text, request_id=request_id, decoding=decoding)
    return stub.Generate.future(request, timeout=TIMEOUT)


def code_of(call: grpc.Future) -> str:
    return str(call.code().name)


def health_of(running: Running) -> str:
    with grpc.insecure_channel(running.target, NO_RETRIES) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT)
        return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


@contextmanager
def watched(running: Running) -> Iterator[list[str]]:
    """Yields the health states, including the first one; a new state appears with a short delay."""
    seen: list[str] = []
    with grpc.insecure_channel(running.target, NO_RETRIES) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())

        def look() -> None:
            with suppress(grpc.RpcError):
                for answer in watch:
                    seen.append(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))

        thread = threading.Thread(target=look)
        thread.start()
        while not seen:
            time.sleep(0.01)
        yield seen
        watch.cancel()
        thread.join()


def workers_of(running: Running) -> list[psutil.Process]:
    """Returns the server's worker processes, without the processes that forked them."""
    return [
        process for process in psutil.Process(running.process.pid).children(recursive=True) if not process.children()
    ]


def check_nothing_is_stuck(running: Running) -> None:
    metrics = running.metrics()
    assert {name: metrics[f'attendant_{name}{{"model": "tiny"}}'] for name in GAUGES} == dict.fromkeys(GAUGES, 0)
    assert metrics['attendant_ready{"model": "tiny"}'] == 1 and health_of(running) == "SERVING"


@pytest.fixture(scope="module")
def breakable(tiny_bundle_path: Path) -> Iterator[Running]:
    """Starts a server with one worker. At the end, this worker is stopped, which must not hold up the server's end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(*SHORT_DELAYS)
        with server(str(tiny_bundle_path), "--max-restarts", "100", program=PROGRAM) as running:
            yield running
            for worker in workers_of(running):
                worker.suspend()
            running.process.send_signal(signal.SIGTERM)
            assert running.process.wait(30) == 0


def test_a_poisoned_request_is_refused_and_its_neighbours_are_answered(breakable: Running) -> None:
    with connected(breakable) as stub:
        expected = [(hypothesis.tokens, hypothesis.score) for hypothesis in ask(stub).result().hypotheses]
        for how in (Break.CRASH, Break.RAISE):
            before = breakable.metrics()[RESTARTS]
            neighbours = [ask(stub) for _ in range(6)]
            poisoned = ask(stub, how.text, request_id=f"the-poisoned-one-{how.name}")
            neighbours += [ask(stub) for _ in range(6)]
            assert code_of(poisoned) == "INTERNAL"
            assert poisoned.details() == "internal error; the server's log has it under this request's id"
            for call in neighbours:
                assert [(hypothesis.tokens, hypothesis.score) for hypothesis in call.result().hypotheses] == expected
            assert breakable.metrics()[RESTARTS] == before + 2, "once with its neighbours, once alone"
            assert code_of(ask(stub, how.text)) == "INTERNAL"
            assert breakable.metrics()[RESTARTS] == before + 2, "a known poisoned request is not tried again"
            check_nothing_is_stuck(breakable)
            log = breakable.log()
            (line,) = [line for line in log.splitlines() if f"the-poisoned-one-{how.name}" in line]
            assert "reason=poisoned" in line
            assert ("the model is broken" in log) == (how is Break.RAISE), "the log has the reason, the caller has not"


def test_a_worker_that_is_killed_is_started_again(breakable: Running) -> None:
    with connected(breakable) as stub, watched(breakable) as seen:
        (worker,) = workers_of(breakable)
        theirs, ours = (int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in (worker.pid, os.getpid()))
        assert theirs > ours or theirs == 1000, "the kernel ends a worker before the server"
        worker.kill()
        call = ask(stub)
        assert call.result().hypotheses, "it waited for the next one"
        assert workers_of(breakable) != [worker]
        check_nothing_is_stuck(breakable)
        while len(seen) < 3:
            time.sleep(0.01)
        assert seen == ["SERVING", "NOT_SERVING", "SERVING"]


def test_a_hung_engine_is_replaced(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(*SHORT_DELAYS)
    options = "--workers", "2", "--hang-seconds", "1", "--max-restarts", "100"
    with start(*options, program=PROGRAM) as running, connected(running) as stub:
        assert ask(stub).result().hypotheses
        poisoned = ask(stub, Break.HANG.text)
        assert {code_of(call) for call in [ask(stub) for _ in range(8)]} == {"OK"}, "they are decoded again"
        assert code_of(poisoned) == "INTERNAL" and running.log().count("a worker process hangs") >= 1
        check_nothing_is_stuck(running)
        for is_draining in (False, True):
            # A worker that is stopped while it starts is not replaced.
            while (log := running.log()).count("process serves again") < log.count("process has died"):
                time.sleep(0.01)
            before = log.count("a worker process hangs")
            workers = workers_of(running)
            for worker in workers:
                worker.suspend()
            calls = [ask(stub) for _ in range(8)]
            if is_draining:
                while not running.metrics()['attendant_requests_running{"model": "tiny"}']:
                    time.sleep(0.01)
                running.process.send_signal(signal.SIGTERM)
            assert {code_of(call) for call in calls} == {"OK"}, "they are decoded again"
            assert running.log().count("a worker process hangs") > before
            if is_draining:
                assert running.process.wait(30) == 0
            else:
                check_nothing_is_stuck(running)
            assert not any(worker.is_running() for worker in workers)


@pytest.mark.reliability
@pytest.mark.parametrize("num_workers", [1, 2])
def test_workers_that_are_stopped_for_20_s(start: Start, figure: Figure, num_workers: int) -> None:
    with start("--workers", str(num_workers), program=PROGRAM) as running, connected(running) as stub:
        for call in [ask(stub) for _ in range(200)]:
            assert call.result().hypotheses
        for worker in workers_of(running):
            worker.suspend()
        began = time.monotonic()
        calls = [ask(stub) for _ in range(64)]
        codes = [code_of(call) for call in calls]
        answered = time.monotonic() - began
        bound = re.search(r"silent_seconds=([0-9.]+)", running.log())
        assert bound
        check_nothing_is_stuck(running)
    layout = f"{num_workers} stopped worker{'s' if num_workers > 1 else ''}"
    figure(f"{layout}: calls answered by those that replace them, of 64", codes.count("OK"), at_least(64), "")
    figure(f"{layout}: bound", float(bound[1]), at_most(10), "s")
    figure(f"{layout}: last call answered, after the bound", answered - float(bound[1]), at_most(15), "s")


@pytest.mark.reliability
def test_a_poisoned_request_among_many(start: Start, figure: Figure) -> None:
    with start(program=PROGRAM) as running, connected(running) as stub:
        assert ask(stub).result().hypotheses
        began = time.monotonic()
        neighbours = [ask(stub) for _ in range(100)]
        poisoned = ask(stub, Break.CRASH.text)
        neighbours += [ask(stub) for _ in range(100)]
        outcome = code_of(poisoned), time.monotonic() - began
        codes = [code_of(call) for call in neighbours]
        seconds = time.monotonic() - began
        deaths = running.metrics()[RESTARTS]
        check_nothing_is_stuck(running)
    assert outcome[0] == "INTERNAL"
    figure("poisoned request: neighbours answered, of 200", codes.count("OK"), at_least(200), "")
    figure("poisoned request: engines that it ended", deaths, at_most(2), "")
    figure("poisoned request: found after", outcome[1], at_most(30), "s")
    figure("poisoned request: all neighbours answered after", seconds, at_most(30), "s")


@pytest.mark.reliability
def test_workers_that_are_killed_under_load(start: Start, figure: Figure) -> None:
    with start("--workers", "2", "--max-restarts", "100", program=PROGRAM) as running, connected(running) as stub:
        calls = [ask(stub)]
        assert calls[0].result().hypotheses
        descriptors = running.num_descriptors()
        for number in range(5):
            calls += [ask(stub) for _ in range(200 - len(calls) % 200)]
            time.sleep(0.2)  # some are answered, some run, some wait
            workers_of(running)[0].kill()
            while running.log().count("serves again") <= number:
                assert running.process.poll() is None
                time.sleep(0.05)
        codes = [code_of(call) for call in calls]
        check_nothing_is_stuck(running)
        give_up = time.monotonic() + 20  # the connections of the health and metrics calls are still closing
        while (more_descriptors := running.num_descriptors() - descriptors) > 0 and time.monotonic() < give_up:
            time.sleep(0.1)
        answered = running.metrics()['attendant_requests_total{"code": "OK", "method": "Generate", "model": "tiny"}']
    figure("5 workers killed under load: calls answered, of 1,000", codes.count("OK"), at_least(1000), "")
    figure("5 workers killed under load: answers that the server counted", answered, at_most(1000), "")
    figure("5 workers killed under load: descriptors that stayed open", more_descriptors, at_most(0), "")
