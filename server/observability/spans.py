"""OpenTelemetry's spans of requests. Where they are sent, and how many, its own variables say: OTEL_*."""

import time
from contextvars import ContextVar
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.semconv.attributes.client_attributes import CLIENT_ADDRESS
from opentelemetry.semconv.attributes.error_attributes import ERROR_TYPE
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from attendant.server.access.clients import address_of
from attendant.server.engine.request import RequestStats
from attendant_client.version import VERSION

NANOSECONDS = 10**9
FAILURES = frozenset({"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"})
"""Codes that are the server's failures, by OpenTelemetry's conventions for RPCs; others are their callers'."""

CONVENTIONS = "https://opentelemetry.io/schemas/1.40.0"
# The library marks these names as provisional, until the conventions for RPCs are declared stable.
METHOD, STATUS_CODE, SYSTEM = "rpc.method", "rpc.response.status_code", "rpc.system.name"

W3C = TraceContextTextMapPropagator()
CALL: ContextVar[tuple[Context, dict[str, str]]] = ContextVar("call")
"""The parent of the call that is being handled, and the attributes of its requests."""


def otlp_provider() -> TracerProvider:
    """Sends spans by OTLP over gRPC, in batches, from a thread; what can't be sent in time is dropped."""
    ours = Resource({"service.name": "attendant", "service.version": VERSION})
    provider = TracerProvider(resource=ours.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def tracer_of(provider: TracerProvider) -> "SpanTracer":
    return SpanTracer(provider.get_tracer("attendant.server", schema_url=CONVENTIONS))


class SpanTracer:
    """Makes a span for each request."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    def note_call(self, name: str, call: Any) -> None:
        """Notes what the requests of the call that is being handled have in common.

        Args:
            name: the method's, with its service.
            call: gRPC's context, or an HTTP request in its place; its metadata may name the trace that they belong to.
        """
        metadata = {key: value for key, value in call.invocation_metadata() if isinstance(value, str)}
        system = getattr(call, "rpc_system", "grpc")
        facts = {SYSTEM: system, METHOD: name, CLIENT_ADDRESS: address_of(call.peer())}
        CALL.set((W3C.extract(metadata), facts))

    def begin(self, request_id: str) -> "SpanTrace":
        """A request has come, of the call that is being handled."""
        return SpanTrace(self._tracer, request_id)


class SpanTrace:
    """A request's span.

    Attributes:
        exemplar: what a measurement keeps of the request, its trace; None where the trace is not recorded.
    """

    def __init__(self, tracer: trace.Tracer, request_id: str) -> None:
        self._tracer = tracer
        parent, facts = CALL.get()
        facts = facts | {"attendant.request_id": request_id}
        self._span = tracer.start_span(facts[METHOD], parent, trace.SpanKind.SERVER, facts)
        context = self._span.get_span_context()
        self.exemplar: dict[str, str] | None = None
        if context.trace_flags.sampled:
            self.exemplar = {"trace_id": trace.format_trace_id(context.trace_id)}

    def phases(self, stats: RequestStats) -> None:
        """The request was answered: where its time went. The child spans are made of the engine's own times."""
        if not self._span.is_recording():
            return
        parent = trace.set_span_in_context(self._span, Context())
        # The engine's clock, which is this machine's monotonic one, as time of day.
        began = time.time_ns() - time.monotonic_ns() + round(stats.submitted * NANOSECONDS)
        facts = {"attendant.steps": stats.steps, "attendant.mean_batch_rows": stats.mean_batch_rows}
        for phase, seconds in (("queue", stats.queue), ("encode", stats.encode), ("decode", stats.decode)):
            ended = began + round(seconds * NANOSECONDS)
            child = self._tracer.start_span(
                phase, parent, attributes=facts if phase == "decode" else None, start_time=began
            )
            child.end(ended)
            began = ended

    def end(self, *, model: str, code: str) -> None:
        """The request has ended, with an answer or an error."""
        self._span.set_attributes({"attendant.model": model, STATUS_CODE: code})
        if code in FAILURES:
            self._span.set_attribute(ERROR_TYPE, code)
            self._span.set_status(trace.StatusCode.ERROR)
        self._span.end()
