"""Tests of the server from its options to its exit status.

It runs in this process, so that a test can delay the loading or break the model.
"""

import asyncio
import json
import os
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from attendant.server.app import serve
from attendant.server.engine.client import EngineClient
from attendant.server.engine.processes import WorkerGroup
from attendant.server.engine.scheduler import Budget
from attendant.server.grpc import port as listening
from attendant.server.inference.v2 import open_inference_pb2 as wire
from attendant_client.v1 import seq2seq_pb2 as messages
from attendant_client.v1 import seq2seq_pb2_grpc
from tests.configuration import parse_config
from tests.fakes import FakeStepper
from tests.http_serving import Http
from tests.inference import infer_body, infer_request, inference_stub
from tests.serving import PATIENCE_SECONDS, code_of, eventually, fake_bundle, fake_stepper, gated_stepper
from tests.workers import ThreadWorker

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
LONG = messages.GenerateRequest(text="abc", decoding=messages.DecodingOptions(min_length=20, max_length=20))


BUDGET = Budget(max_rows=256, max_source_positions=32768, bulk_seconds=0.005)


App = Callable[..., AbstractAsyncContextManager[tuple["asyncio.Task[int]", grpc.aio.Channel]]]


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> App:
    """Returns a function that runs a server with a model and options.

    It yields the task that runs the server, and a channel to its port. The worker calls `load` first.
    """
    ports: list[int] = []
    original = listening.bind

    def bind(*arguments: Any) -> int:
        ports.append(original(*arguments))
        return ports[-1]

    bundle = fake_bundle()
    monkeypatch.setattr(listening, "bind", bind)
    monkeypatch.setattr("attendant.server.app.open_bundles", lambda config: [bundle])

    @asynccontextmanager
    async def running(stepper: FakeStepper, *arguments: str, load: Callable[[], object] = lambda: None) -> Any:
        version = bundle.manifest.version
        monkeypatch.setattr(WorkerGroup, "start", lambda group: ThreadWorker(stepper, BUDGET, load, version))
        config = parse_config(["bundle", "--port", "0", "--metrics-port", "0", *arguments], {})
        task = asyncio.create_task(serve(config))
        await eventually(lambda: bool(ports) or task.done())
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{ports[0]}") as channel:
                yield task, channel
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    return running


async def until_serving(channel: grpc.aio.Channel) -> Any:
    """Waits until health is SERVING; returns the watch, which stays open."""
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True)
    while (await watch.read()).status != SERVING:
        pass
    return watch


async def terminated(task: "asyncio.Task[int]", number: int = signal.SIGTERM) -> int:
    """Sends a signal; returns the exit status."""
    os.kill(os.getpid(), number)
    return await asyncio.wait_for(task, PATIENCE_SECONDS)


async def line_of(capsys: pytest.CaptureFixture[str]) -> str:
    """Waits for the line that the server prints when it is ready; returns it."""
    printed: list[str] = []
    await eventually(lambda: bool(printed.append(capsys.readouterr().out) or "serving on" in "".join(printed)))
    (line,) = "".join(printed).splitlines()
    return line


async def test_health_answers_while_bundles_are_checked(app: App, capsys: pytest.CaptureFixture[str]) -> None:
    checked = threading.Event()
    async with app(fake_stepper(), load=lambda: checked.wait(PATIENCE_SECONDS)) as (task, channel):
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True)
        assert (await watch.read()).status == NOT_SERVING
        stub = seq2seq_pb2_grpc.Seq2SeqStub(channel)
        assert await code_of(stub.Generate(LONG)) == "UNAVAILABLE"
        assert capsys.readouterr().out == "", "not a word before it serves"
        checked.set()
        assert (await watch.read()).status == SERVING
        assert (await stub.Generate(LONG)).hypotheses
        await line_of(capsys)
        watch.cancel()
        assert await terminated(task) == 0


async def test_a_log_in_json_makes_standard_output_json_too(app: App, capsys: pytest.CaptureFixture[str]) -> None:
    async with app(fake_stepper(), "--log-format", "json") as (task, _):
        assert json.loads(await line_of(capsys))["message"].startswith("serving on 127.0.0.1:")
        assert await terminated(task) == 0


async def test_a_connection_is_replaced_after_its_maximum_age(app: App) -> None:
    async with app(fake_stepper(), "--connection-seconds", "0.5") as (task, channel):
        stub = seq2seq_pb2_grpc.Seq2SeqStub(channel)
        (await until_serving(channel)).cancel()
        assert (await stub.Generate(LONG)).hypotheses
        await asyncio.wait_for(channel.wait_for_state_change(grpc.ChannelConnectivity.READY), PATIENCE_SECONDS)
        assert (await stub.Generate(LONG)).hypotheses
        assert await terminated(task) == 0


async def test_a_signal_during_the_check_of_bundles_ends_the_server(app: App) -> None:
    checked = threading.Event()
    async with app(fake_stepper(), load=lambda: checked.wait(PATIENCE_SECONDS)) as (task, channel):
        await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), wait_for_ready=True)
        assert await terminated(task, signal.SIGINT) == 0
        checked.set()


async def test_a_dead_engine_ends_the_server_with_status_1(app: App) -> None:
    stepper = fake_stepper()
    stepper.fail_at_step = 3
    async with app(stepper, "--max-restarts", "0") as (task, channel):
        watch = await until_serving(channel)
        assert await code_of(seq2seq_pb2_grpc.Seq2SeqStub(channel).Generate(LONG)) == "UNAVAILABLE"
        assert (await watch.read()).status == NOT_SERVING
        watch.cancel()
        assert await asyncio.wait_for(task, PATIENCE_SECONDS) == 1


async def test_a_worker_that_dies_while_loading_ends_the_server_with_status_1(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    def load() -> None:
        raise RuntimeError("as if the kernel had killed it")

    async with app(fake_stepper(), load=load) as (task, _):
        assert await asyncio.wait_for(task, PATIENCE_SECONDS) == 1
    (reason,) = [vars(record)["reason"] for record in caplog.records if "can't be started" in record.message]
    assert reason.startswith("it ended while it loaded its bundle (its thread ended)")


async def test_a_second_signal_ends_the_drain(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    stepper = gated_stepper()
    stopping: list[EngineClient] = []
    original = EngineClient.stop

    def stop(runner: EngineClient) -> None:
        stopping.append(runner)
        original(runner)

    monkeypatch.setattr(EngineClient, "stop", stop)
    async with app(stepper, "--drain-seconds", "60") as (task, channel):
        watch = await until_serving(channel)
        call = seq2seq_pb2_grpc.Seq2SeqStub(channel).Generate(LONG)
        await stepper.arrival()
        os.kill(os.getpid(), signal.SIGTERM)
        assert (await watch.read()).status == NOT_SERVING
        assert not task.done()
        os.kill(os.getpid(), signal.SIGTERM)
        await eventually(lambda: bool(stopping))
        stepper.let_one_pass()
        assert await code_of(call) == "UNAVAILABLE"
        watch.cancel()
        assert await asyncio.wait_for(task, PATIENCE_SECONDS) == 0


@pytest.mark.parametrize(
    ("options", "code", "status"), [((), "OK", 200), (("--no-open-inference",), "UNIMPLEMENTED", 404)]
)
async def test_the_open_inference_protocol_can_be_switched_off(
    app: App, options: tuple[str, ...], code: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: dict[str, tuple[Any, str, Any]] = {
        "ServerLive": (wire.ServerLiveRequest(), "health/live", None),
        "ModelReady": (wire.ModelReadyRequest(name="fake"), "models/fake/ready", None),
        "RepositoryIndex": (wire.RepositoryIndexRequest(), "repository/index", {}),
        "ModelInfer": (infer_request("abc"), "models/fake/infer", infer_body("abc")),
    }
    async with app(fake_stepper(), *options) as (task, channel):
        web = Http(int((await line_of(capsys)).rpartition(":")[2]))
        stub = inference_stub(channel)
        for method, (request, path, body) in calls.items():
            call = getattr(stub, method)(request, timeout=PATIENCE_SECONDS)
            assert (method, (await call.code()).name) == (method, code)
            answer = await (web.get(f"/v2/{path}") if body is None else web.post(f"/v2/{path}", body))
            assert (path, answer.status) == (path, status)
        assert (await web.get("/v1/models")).status == 200
        assert await terminated(task) == 0
