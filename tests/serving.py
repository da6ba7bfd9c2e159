"""A whole server in this process, over a fake model: for tests of everything between the wire and the stepper."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry
from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as LibraryTokenizer

from attendant.runtime.bundle.bundle import Bundle, limits_in_force
from attendant.runtime.bundle.graph_io import step_inputs, step_outputs
from attendant.runtime.bundle.manifest import (
    DecodingDefaults,
    Evaluation,
    GraphPair,
    GraphSpec,
    Limits,
    Manifest,
    Provenance,
    SourceSide,
    TargetSide,
)
from attendant.runtime.bundle.tokenizer import SPECIAL_TOKENS, Tokenizer
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.stepper import DecoderState, Ids, StepOutput
from attendant.server.app import grpc_methods
from attendant.server.auth import Access, Gate
from attendant.server.call import Call, RequestLog, rpcs_of
from attendant.server.catalogue import Catalogue, Routes, ServedModel
from attendant.server.config import ServerConfig
from attendant.server.engine.client import EngineClient
from attendant.server.engine.messages import Outcome, Result
from attendant.server.engine.scheduler import Budget
from attendant.server.errors import AttendantError
from attendant.server.grpc.handlers import Bounds, Handlers
from attendant.server.grpc.port import HEADROOM, GrpcPort, bounded, grpc_server, hang_up_on
from attendant.server.grpc.requests import MAX_ANSWER_BYTES, AnswerBudget
from attendant.server.grpc.service import SERVICE, Seq2SeqServicer
from attendant.server.inference.service import InferenceServicer
from attendant.server.lifecycle import Lifecycle
from attendant.server.metrics import Metrics
from attendant.server.repository import Reconciler
from attendant.server.tracing import Tracer
from attendant_client.v1 import seq2seq_pb2_grpc
from tests.fakes import SPECIAL_IDS, FakeStepper
from tests.workers import thread_pool

LETTERS = "abcdefgh"
SOUNDS = ("AA", "B", "K", "D", "EH", "F", "G", "HH")
PATIENCE_SECONDS = 20.0
BOUNDS = Bounds()


class GatedStepper(FakeStepper):
    """Waits before each step until the test lets it continue. After `open`, it does not wait."""

    def __init__(self, vocabulary_size: int) -> None:
        super().__init__(vocabulary_size)
        self._gate = threading.Semaphore(0)
        self._opened = False
        self._at_gate = threading.Semaphore(0)

    def step(self, state: DecoderState, previous_ids: Ids, **options: Any) -> tuple[StepOutput, DecoderState]:
        self._at_gate.release()
        if not self._opened:
            assert self._gate.acquire(timeout=PATIENCE_SECONDS)
        return super().step(state, previous_ids, **options)

    async def arrival(self) -> None:
        """Waits until the engine begins a step."""
        assert await asyncio.to_thread(self._at_gate.acquire, timeout=PATIENCE_SECONDS)

    def let_one_pass(self) -> None:
        self._gate.release()

    def open(self) -> None:
        self._opened = True
        self._gate.release()


def symbol_tokenizer(symbols: Sequence[str], *, characters: bool) -> Tokenizer:
    """Makes a tokenizer of characters or of words."""
    vocabulary = {symbol: number for number, symbol in enumerate([*SPECIAL_TOKENS, *symbols])}
    library = LibraryTokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL_TOKENS[1]))
    if characters:
        library.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
        library.decoder = decoders.Fuse()
    else:
        library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Tokenizer(library)


def fake_bundle(name: str = "fake", *, attention: bool = True, **decoding: Any) -> Bundle:
    """Makes a bundle without files that can be served; `decoding` are its decoding defaults."""
    source, target = symbol_tokenizer(LETTERS, characters=True), symbol_tokenizer(SOUNDS, characters=False)
    inputs, outputs = step_inputs(attention), step_outputs(attention)
    graph = GraphSpec(file="", sha256="", opset=18, inputs=inputs, outputs=outputs)
    manifest = Manifest(
        name=name,
        model={"cell": "lstm", "encoder": {"num_layers": 1, "bidirectional": True}, "bridge": None},
        source=SourceSide(vocabulary_size=source.vocabulary_size, append_eos=True),
        target=TargetSide(vocabulary_size=target.vocabulary_size),
        special_ids=SPECIAL_IDS,
        graphs={"fp32": GraphPair(encoder=graph, decoder_step=graph, state=(), min_queries=2)},
        default_precision={"cpu": "fp32"},
        limits=Limits(max_source_tokens=12, max_target_tokens=20, max_beam_size=6, max_num_hypotheses=4),
        decoding=DecodingDefaults(**{"beam_size": 2, "length_penalty": 0.6, **decoding}),
        provenance=Provenance(commit="", created="", versions={}, recipe={}, data_digest="", checkpoint=""),
        evaluation=(Evaluation(metric="wer", value=0.25, protocol="none", num_examples=3),),
        certificates=(),
        files={},
    ).signed()
    return Bundle(path=Path(), manifest=manifest, source_tokenizer=source, target_tokenizer=target, golden=())


def fake_stepper() -> FakeStepper:
    return FakeStepper(len(SPECIAL_TOKENS) + len(SOUNDS))


def gated_stepper() -> GatedStepper:
    return GatedStepper(len(SPECIAL_TOKENS) + len(SOUNDS))


def serve_fake(
    stepper: FakeStepper,
    metrics: Metrics,
    bundle: Bundle | None = None,
    *,
    max_rows: int = 8,
    max_waiting: int = 100,
    max_bulk: int = 16,
    on_death: Callable[[], None] = lambda: None,
) -> ServedModel:
    """Makes a model whose engine is not started yet."""
    bundle = bundle or fake_bundle()
    rendered = metrics.of_model(bundle.manifest.name)
    budget = Budget(max_rows=max_rows, max_source_positions=1024)
    runner = EngineClient(
        thread_pool(stepper, budget=budget, on_step=rendered.stepped),
        ServerConfig(bundles=(), max_waiting=max_waiting, max_wait_seconds=60.0),
        max_bulk=max_bulk,
        on_death=on_death,
        on_prediction=rendered.predicted,
    )
    rendered.watch(
        runner,
        rows_limit=max_rows,
        version=bundle.manifest.version,
        precision="fp32",
        provider="cpu",
    )
    return ServedModel(
        bundle=bundle,
        label=bundle.manifest.version,
        precision="fp32",
        provider="cpu",
        limits=limits_in_force(bundle.manifest, max_rows),
        runner=runner,
        metrics=rendered,
    )


def no_repositories(catalogue: Catalogue, metrics: Metrics) -> Reconciler:
    """Makes the reconciler of a server without a repository."""

    def never(*args: Any, **options: Any) -> Any:
        raise AssertionError("there is no repository")

    return Reconciler([], catalogue, metrics, never, Lifecycle(catalogue, metrics))


@dataclass(frozen=True, slots=True)
class Served:
    """A running server and a connection to it."""

    models: list[ServedModel]
    metrics: Metrics
    catalogue: Catalogue
    log: RequestLog
    lifecycle: Lifecycle
    target: str
    channel: grpc.aio.Channel
    stub: Any

    @property
    def model(self) -> ServedModel:
        return self.models[0]

    def sample(self, name: str, **labels: str) -> float:
        """Returns a metric's value; 0 if it has none yet."""
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    def num_ended(self, *codes: str) -> float:
        """Returns the number of Generate calls of the first model that ended with one of these codes."""
        labels = {"model": self.model.name, "method": "Generate"}
        return sum(self.sample("attendant_requests_total", code=code, **labels) for code in codes)

    async def ended(self, *codes: str, count: int = 1) -> None:
        """Waits until `count` Generate calls of the first model have ended with one of these codes."""
        await eventually(lambda: self.num_ended(*codes) >= count)


@asynccontextmanager
async def served(
    stepper: FakeStepper,
    *bundles: Bundle,
    ready: bool = True,
    access: Access | None = None,
    max_answer_bytes: int = MAX_ANSWER_BYTES,
    unread_seconds: float = PATIENCE_SECONDS,
    bounds: Bounds = BOUNDS,
    max_connections: int = 100,
    tracer: Tracer | None = None,
    **options: Any,
) -> AsyncIterator[Served]:
    """Starts a server on a free port, each bundle with this stepper's engine; `options` are those of `serve_fake`."""
    access = access or Access()
    metrics, catalogue = Metrics(CollectorRegistry()), Catalogue()
    lifecycle = Lifecycle(catalogue, metrics)
    answer_budget = AnswerBudget(unread_seconds=unread_seconds, max_bytes=max_answer_bytes)
    log = RequestLog(catalogue, metrics, tracer=tracer)
    gate = Gate(access, log)
    metrics.watch_server(answer_budget.gauges())
    seq2seq = rpcs_of(SERVICE, Seq2SeqServicer(log, answer_budget))
    servicer = InferenceServicer(log, no_repositories(catalogue, metrics), lambda: lifecycle.is_serving)
    inference = servicer.rpcs(access.health)
    handlers = Handlers(
        grpc_methods(seq2seq, inference, lifecycle.health, access),
        gate,
        bounds=bounds,
        answer_budget=answer_budget,
        hang_up=hang_up_on,
    )
    make_server = partial(
        grpc_server,
        handlers,
        max_connections=max_connections + HEADROOM,
        max_calls_per_connection=100,
    )
    port = GrpcPort(make_server, metrics, "127.0.0.1", 0, access.grpc_credentials())
    models = [
        serve_fake(stepper, metrics, bundle, on_death=partial(lifecycle.engine_died, bundle.manifest.name), **options)
        for bundle in bundles or (fake_bundle(),)
    ]
    await lifecycle.set_open(False)
    await port.start()
    if ready:
        for model in models:
            await model.runner.start()
            catalogue.put(Routes(stable=model))
        catalogue.open()
        await lifecycle.set_open(True)
    try:
        target = f"127.0.0.1:{port.port}"
        with bounded(port.port, max_connections, handlers.connection_calls):
            async with grpc.aio.insecure_channel(target) as channel:
                stub = seq2seq_pb2_grpc.Seq2SeqStub(channel)
                yield Served(models, metrics, catalogue, log, lifecycle, target, channel, stub)
    finally:
        if isinstance(stepper, GatedStepper):
            stepper.open()
        for model in models:
            model.runner.stop()
        await port.close(handlers.answered)
    # Every request has returned its lease.
    await eventually(lambda: not any(model.leases.num_held for model in models))


def submit(
    runner: EngineClient, source_ids: tuple[int, ...], options: DecodingOptions, *limits: Any, **more: Any
) -> "asyncio.Future[Outcome]":
    """Submits one request; see `EngineClient.submit_all`."""
    return runner.submit_all([(source_ids, options)], *limits, **more)[0]


async def answered(submitted: "asyncio.Future[Outcome]") -> Result:
    """Returns the result of a request; raises its error."""
    outcome = await submitted
    if isinstance(outcome, AttendantError):
        raise outcome
    return outcome


async def failure(call: Any) -> grpc.aio.AioRpcError:
    """Awaits a call that fails; returns its error."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def code_of(call: Any) -> str:
    """Returns the name of the status with which a call ends."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return str(error.code().name)
    return "OK"


async def eventually(holds: Callable[[], bool]) -> None:
    """Waits until `holds` returns True, and then until commands to the workers are sent."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < give_up, "it never came to be"
        await asyncio.sleep(0.002)
    for _ in range(5):  # commands for the workers are sent some turns of the event loop later
        await asyncio.sleep(0)


class FakeCall(Call):
    """A call without a protocol."""

    def __init__(self) -> None:
        super().__init__("unix:")

    def metadata(self) -> list[tuple[str, str | bytes]]:
        return []

    def time_remaining(self) -> None:
        return None

    def certificate_name(self) -> str:
        return ""
