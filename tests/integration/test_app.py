"""From the options to the exit status, in this process, so that a test can hold the loading back or break the model."""

import asyncio
import json
import os
import re
import signal
import threading
import urllib.request
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from attendant.runtime.errors import UserError
from attendant.server.app import serve
from attendant.server.engine.client import EngineClient
from attendant.server.engine.scheduler import Budget
from attendant.server.grpc import port as listening
from attendant.server.process.spawning import WorkerGroup
from attendant_client.v1 import seq2seq_pb2 as messages
from attendant_client.v1 import seq2seq_pb2_grpc
from tests.configuration import parse_config
from tests.fakes import FakeStepper
from tests.serving import PATIENCE_SECONDS, eventually, fake_bundle, fake_stepper, gated_stepper
from tests.workers import ThreadWorker

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
LONG = messages.GenerateRequest(text="abc", decoding=messages.DecodingOptions(min_length=20, max_length=20))


BUDGET = Budget(max_rows=256, max_source_positions=32768, bulk_seconds=0.005)


@asynccontextmanager
async def app(
    monkeypatch: pytest.MonkeyPatch,
    stepper: FakeStepper,
    *arguments: str,
    load: Callable[[], None] = lambda: None,
) -> Any:
    """The task that serves, and its gRPC port as soon as it is bound; `load`: what its worker does first."""
    ports: list[int] = []
    original = listening.bind

    def bind(*given: Any) -> int:
        ports.append(original(*given))
        return ports[-1]

    bundle = fake_bundle()
    monkeypatch.setattr(listening, "bind", bind)
    monkeypatch.setattr("attendant.server.app.open_bundles", lambda config: [bundle])
    monkeypatch.setattr(
        WorkerGroup, "start", lambda group: ThreadWorker(stepper, BUDGET, load, bundle.manifest.version)
    )
    config = parse_config(["bundle", "--port", "0", "--metrics-port", "0", *arguments], {})
    task = asyncio.create_task(serve(config))
    await eventually(lambda: bool(ports) or task.done())
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{ports[0]}") as channel:
            yield task, channel
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_health_answers_while_bundles_are_checked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checked = threading.Event()

    def load() -> None:
        assert checked.wait(PATIENCE_SECONDS)

    async with app(monkeypatch, fake_stepper(), load=load) as (task, channel):
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True)
        assert (await watch.read()).status == NOT_SERVING
        stub = seq2seq_pb2_grpc.Seq2SeqStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Generate(LONG)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert capsys.readouterr().out == "", "not a word before it serves"
        checked.set()
        assert (await watch.read()).status == SERVING
        assert (await stub.Generate(LONG)).hypotheses
        await eventually(lambda: "serving on" in capsys.readouterr().out)
        watch.cancel()
        os.kill(os.getpid(), signal.SIGTERM)
        assert await asyncio.wait_for(task, PATIENCE_SECONDS) == 0


async def test_with_a_log_in_json_standard_output_is_json_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with app(monkeypatch, fake_stepper(), "--log-format", "json") as (task, channel):
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True)
        while (await watch.read()).status != SERVING:
            pass
        watch.cancel()
        said: list[str] = []
        await eventually(lambda: bool(said.append(capsys.readouterr().out) or "serving on" in "".join(said)))
        (line,) = "".join(said).splitlines()
        assert json.loads(line)["message"].startswith("serving on 127.0.0.1:")
        os.kill(os.getpid(), signal.SIGTERM)
        assert await asyncio.wait_for(task, PATIENCE_SECONDS) == 0


async def test_a_connection_that_has_lasted_long_enough_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async with app(monkeypatch, fake_stepper(), "--connection-seconds", "0.5") as (task, channel):
        stub = seq2seq_pb2_grpc.Seq2SeqStub(channel)
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True)
        while (await watch.read()).status != SERVING:
            pass
        watch.cancel()
        assert (await stub.Generate(LONG)).hypotheses
        await asyncio.wait_for(channel.wait_for_state_change(grpc.ChannelConnectivity.READY), PATIENCE_SECONDS)
        assert (await stub.Generate(LONG)).hypotheses
        os.kill(os.getpid(), signal.SIGTERM)
        assert await asyncio.wait_for(task, PATIENCE_SECONDS) == 0


async def test_a_signal_while_bundles_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = threading.Event()

    def load() -> None:
        checked.wait(PATIENCE_SECONDS)

    async with app(monkeypatch, fake_stepper(), load=load) as (task, channel):
        await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), wait_for_ready=True)
        os.kill(os.getpid(), signal.SIGINT)
        assert await asyncio.wait_for(task, PATIENCE_SECONDS) == 0
        checked.set()


async def test_a_refused_bundle_ends_it_with_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> None:
        raise UserError("the bundle is refused")

    async with app(monkeypatch, fake_stepper(), load=load) as (task, _):
        with pytest.raises(UserError, match=re.escape("the bundle is refused")):
            await asyncio.wait_for(task, PATIENCE_SECONDS)


async def test_a_dead_engine_is_status_1(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    stepper = fake_stepper()
    stepper.fail_at_step = 3
    async with app(monkeypatch, stepper, "--max-restarts", "0") as (task, channel):
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True)
        while (await watch.read()).status != SERVING:
            pass
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await seq2seq_pb2_grpc.Seq2SeqStub(channel).Generate(LONG)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert (await watch.read()).status == NOT_SERVING
        watch.cancel()
        assert await asyncio.wait_for(task, PATIENCE_SECONDS) == 1


async def test_metrics_answer_while_the_engine_is_busy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stepper = gated_stepper()
    async with app(monkeypatch, stepper) as (task, channel):
        said: list[str] = []
        await eventually(lambda: bool(said.append(capsys.readouterr().out) or "serving on" in "".join(said)))
        url = f"http://127.0.0.1:{''.join(said).rstrip().rpartition(':')[2]}/metrics"
        call = seq2seq_pb2_grpc.Seq2SeqStub(channel).Generate(LONG)
        await stepper.arrival()
        with await asyncio.to_thread(urllib.request.urlopen, url, timeout=PATIENCE_SECONDS) as response:
            lines = response.read().decode().splitlines()
        assert 'attendant_requests_running{model="fake"} 1.0' in lines
        stepper.open()
        await call
        os.kill(os.getpid(), signal.SIGTERM)
        assert await asyncio.wait_for(task, PATIENCE_SECONDS) == 0


async def test_a_second_signal_ends_the_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    stepper = gated_stepper()
    stopping: list[EngineClient] = []
    original = EngineClient.stop

    def stop(runner: EngineClient) -> None:
        stopping.append(runner)
        original(runner)

    monkeypatch.setattr(EngineClient, "stop", stop)
    async with app(monkeypatch, stepper, "--drain-seconds", "60") as (task, channel):
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True)
        while (await watch.read()).status != SERVING:
            pass
        call = seq2seq_pb2_grpc.Seq2SeqStub(channel).Generate(LONG)
        await stepper.arrival()
        os.kill(os.getpid(), signal.SIGTERM)
        assert (await watch.read()).status == NOT_SERVING
        assert not task.done()
        os.kill(os.getpid(), signal.SIGTERM)
        await eventually(lambda: bool(stopping))
        stepper.let_one_pass()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        watch.cancel()
        assert await asyncio.wait_for(task, PATIENCE_SECONDS) == 0
