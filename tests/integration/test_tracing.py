"""Tests of the spans and exemplars of requests, with OpenTelemetry's own SDK and over the wire to a collector."""

import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client.openmetrics.exposition import generate_latest

from attendant.runtime.errors import UserError
from attendant.server.tracing import Tracer, tracing
from attendant_client.v1 import seq2seq_pb2 as messages
from attendant_client.v1 import seq2seq_pb2_grpc
from tests.http_serving import http_served
from tests.paths import ROOT
from tests.server_process import server
from tests.serving import Served, fake_stepper, served

TRACE_ID, PARENT_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED, NOT_SAMPLED = (f"00-{TRACE_ID}-{PARENT_ID}-{flags}" for flags in ("01", "00"))
PHASES = ["queue", "encode", "decode"]


EXPORTER = InMemorySpanExporter()


def tracer() -> Tracer:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(EXPORTER))
    return Tracer(provider)


@pytest.fixture
async def serving() -> AsyncIterator[Served]:
    async with served(fake_stepper(), tracer=tracer()) as started:
        yield started


@pytest.fixture
def spans() -> InMemorySpanExporter:
    EXPORTER.clear()
    return EXPORTER


def families(spans: InMemorySpanExporter) -> list[tuple[ReadableSpan, list[ReadableSpan]]]:
    """Returns the requests' spans, each with its children in order."""
    finished = spans.get_finished_spans()
    return [
        (
            root,
            sorted((span for span in finished if span.parent == root.context), key=lambda span: span.start_time or 0),
        )
        for root in finished
        if root.kind is SpanKind.SERVER
    ]


async def test_a_request_is_a_span_of_its_callers_trace(serving: Served, spans: InMemorySpanExporter) -> None:
    request = messages.GenerateRequest(text="abc", request_id="mine")
    answer = await serving.stub.Generate(request, metadata=[("traceparent", SAMPLED)])
    ((root, children),) = families(spans)
    assert root.name == "attendant.v1.Seq2Seq/Generate"
    assert root.parent is not None
    assert (root.context.trace_id, root.parent.span_id) == (int(TRACE_ID, 16), int(PARENT_ID, 16))
    assert root.attributes is not None
    assert root.attributes == {
        "rpc.system.name": "grpc",
        "rpc.method": root.name,
        "rpc.response.status_code": "OK",
        "client.address": "127.0.0.1",
        "attendant.request_id": "mine",
        "attendant.model": "fake",
    }
    assert root.status.status_code is StatusCode.UNSET
    assert [child.name for child in children] == PHASES
    times = [(child.start_time or 0, child.end_time or 0) for child in children]
    seconds = [(ended - began) / 1e9 for began, ended in times]
    assert seconds == pytest.approx([getattr(answer.timings, phase) for phase in PHASES], abs=1e-8)
    # The phases follow one another, within the request.
    edges = [root.start_time, times[0][0], times[0][1], times[1][0], times[1][1], times[2][0], times[2][1]]
    assert edges == sorted(edges)
    assert times[2][1] <= (root.end_time or 0)
    spans.clear()
    async with http_served(serving) as web:
        assert (await web.post("/v1/generate", {"text": "abc"}, traceparent=SAMPLED)).status == 200
    ((over_http, children),) = families(spans)
    assert (over_http.context.trace_id, over_http.name) == (root.context.trace_id, root.name)
    assert over_http.attributes is not None and over_http.attributes["rpc.system.name"] == "http"
    assert [child.name for child in children] == PHASES


async def test_each_request_of_a_stream_or_a_list_has_its_own_span(
    serving: Served, spans: InMemorySpanExporter
) -> None:
    requests = [messages.GenerateRequest(text=text, request_id=text) for text in ("abc", "de", "f")]
    metadata = [("traceparent", SAMPLED)]
    assert [answer async for answer in serving.stub.GenerateBatch(iter(requests), metadata=metadata)]
    await serving.stub.GenerateMany(messages.GenerateManyRequest(requests=requests), metadata=metadata)
    traced = families(spans)
    methods = [root.name.removeprefix("attendant.v1.Seq2Seq/") for root, _ in traced]
    ids = [root.attributes["attendant.request_id"] for root, _ in traced if root.attributes]
    assert sorted(zip(methods, ids, strict=True)) == [
        *(("GenerateBatch", text) for text in ("abc", "de", "f")),
        *(("GenerateMany", text) for text in ("abc", "de", "f")),
    ]
    for root, children in traced:
        assert root.context.trace_id == int(TRACE_ID, 16)
        assert [child.name for child in children] == PHASES


async def test_a_refusal_does_not_mark_the_span_as_an_error(serving: Served, spans: InMemorySpanExporter) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        await serving.stub.Generate(messages.GenerateRequest(text=""))
    ((root, children),) = families(spans)
    assert not children
    assert root.parent is None
    assert root.attributes is not None
    assert root.attributes["rpc.response.status_code"] == "INVALID_ARGUMENT"
    assert "error.type" not in root.attributes
    assert root.status.status_code is StatusCode.UNSET


async def test_a_server_failure_marks_the_span_as_an_error(spans: InMemorySpanExporter) -> None:
    async with served(fake_stepper(), ready=False, tracer=tracer()) as starting:
        with pytest.raises(grpc.aio.AioRpcError):
            await starting.stub.Generate(messages.GenerateRequest(text="abc"))
    ((root, _),) = families(spans)
    assert root.attributes is not None
    assert root.attributes["rpc.response.status_code"] == root.attributes["error.type"] == "UNAVAILABLE"
    assert root.status.status_code is StatusCode.ERROR


async def test_histogram_buckets_have_the_trace_as_exemplar(serving: Served, spans: InMemorySpanExporter) -> None:
    await serving.stub.Generate(messages.GenerateRequest(text="abc"), metadata=[("traceparent", SAMPLED)])
    lines = generate_latest(serving.metrics.registry).decode().splitlines()
    linked = {line.partition("_bucket")[0] for line in lines if f'# {{trace_id="{TRACE_ID}"}}' in line}
    names = "request", "queue", "encode", "decode", "time_to_first_token"
    assert linked == {f"attendant_{name}_seconds" for name in names}


async def test_calls_that_are_not_sampled_are_not_traced(serving: Served, spans: InMemorySpanExporter) -> None:
    other = NOT_SAMPLED.replace("4bf9", "ffff")
    await serving.stub.Generate(messages.GenerateRequest(text="abc"), metadata=[("traceparent", other)])
    assert not spans.get_finished_spans()
    assert b"ffff2f3577" not in generate_latest(serving.metrics.registry)


def test_tracing_without_the_extra_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(UserError, match="--traces needs the extra `otel`"), tracing("on"):
        pass


def test_a_variable_that_opentelemetry_refuses_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "10s")
    with pytest.raises(UserError, match=r"^--traces: .* variables OTEL_\*: .*'10s'"), tracing("on"):
        pass


@pytest.mark.parametrize(
    ("variables", "warned_of"),
    [
        ({"OTEL_TRACES_EXPORTER": "console"}, "OTEL_TRACES_EXPORTER"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, "OTEL_EXPORTER_OTLP_PROTOCOL"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}, ""),
    ],
)
def test_variables_without_effect_are_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, variables: dict[str, str], warned_of: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with tracing("on"):
        assert warned_of in caplog.text and bool(warned_of) == bool(caplog.records)


def test_without_tracing_its_library_is_not_imported(environment: dict[str, str]) -> None:
    program = "import sys, attendant.server.app; sys.exit('opentelemetry' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], env=environment, cwd=ROOT).returncode == 0


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Receives traces as a collector does, and does not answer until the test is over.

    Attributes:
        spans: each with the attributes of its resource.
    """

    def __init__(self) -> None:
        self.spans: list[tuple[dict[str, str], trace_pb2.Span]] = []
        self.over = threading.Event()

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
        for resource_spans in request.resource_spans:
            of = {attribute.key: attribute.value.string_value for attribute in resource_spans.resource.attributes}
            self.spans += [(of, span) for scope in resource_spans.scope_spans for span in scope.spans]
        self.over.wait()
        return trace_service_pb2.ExportTraceServiceResponse()


def test_a_collector_has_all_spans_at_exit_and_does_not_delay_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collector = Collector()
    receiver = grpc.server(ThreadPoolExecutor(1))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, receiver)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{receiver.add_insecure_port('127.0.0.1:0')}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60")
    receiver.start()
    try:
        with (
            server(str(ROOT / "models" / "g2p-en"), "--traces", "on") as started,
            grpc.insecure_channel(started.target) as to,
        ):
            stub = seq2seq_pb2_grpc.Seq2SeqStub(to)
            stub.Generate(messages.GenerateRequest(text="onnx"), timeout=20, metadata=[("traceparent", SAMPLED)])
            started.process.send_signal(signal.SIGTERM)
            assert started.process.wait(30) == 0
    finally:
        collector.over.set()
        receiver.stop(None).wait()
    assert sorted(span.name for _, span in collector.spans) == sorted(["attendant.v1.Seq2Seq/Generate", *PHASES])
    for resource, span in collector.spans:
        assert resource["service.name"] == "attendant"
        assert span.trace_id.hex() == TRACE_ID
