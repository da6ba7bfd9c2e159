"""OpenTelemetry's spans: with --traces each request is a span, whose children are queue, encode and decode.

OpenTelemetry's own variables, OTEL_*, choose where spans are sent, and which share of them. It is an extra, and takes a
while to import, so it is imported only when it is needed.
"""

# ruff: noqa: PLC0415

import logging
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from attendant.runtime.errors import UserError, reason_of
from attendant.runtime.process import on_a_thread
from attendant.server.config import Switch
from attendant.server.engine.messages import RequestStats
from attendant_client.version import VERSION

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider

log = logging.getLogger(__name__)

FLUSH_SECONDS = 1.0
"""When the server ends, the last spans may take this long to be sent. A collector that hangs delays it no longer."""

NANOSECONDS = 10**9
FAILURES = frozenset({"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"})
"""Codes that are the server's failures, by OpenTelemetry's conventions for RPCs; others are their callers'."""

CONVENTIONS = "https://opentelemetry.io/schemas/1.40.0"
FIXED = {
    ("OTEL_TRACES_EXPORTER",): "otlp",
    ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"): "grpc",
}
"""Variables of OpenTelemetry with a single possible value here; of several, the first that is set counts."""

# Provisional names, until the conventions for RPCs are declared stable.
METHOD, STATUS_CODE, SYSTEM = "rpc.method", "rpc.response.status_code", "rpc.system.name"


class Tracer:
    def __init__(self, provider: "TracerProvider") -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = provider.get_tracer("attendant.server", schema_url=CONVENTIONS)
        self._propagator = TraceContextTextMapPropagator()

    def parent_of(self, metadata: Iterable[tuple[str, str | bytes]]) -> "Context":
        """Returns the trace that a call's metadata names, to which its requests' spans belong."""
        return self._propagator.extract({key: value for key, value in metadata if isinstance(value, str)})

    def begin(self, parent: "Context", protocol: str, method: str, address: str, request_id: str) -> "RequestSpan":
        """Begins the span of a request, of a method with this full name."""
        attributes = {SYSTEM: protocol, METHOD: method, "client.address": address}
        return RequestSpan(self._tracer, parent, attributes | {"attendant.request_id": request_id})


class RequestSpan:
    """A request's span.

    Attributes:
        exemplar: the trace's id, which measurements of the request keep; None if the trace is not recorded.
    """

    def __init__(self, tracer: Any, parent: "Context", attributes: dict[str, str]) -> None:
        from opentelemetry.trace import SpanKind, format_trace_id

        self._tracer = tracer
        self._span = tracer.start_span(attributes[METHOD], parent, SpanKind.SERVER, attributes)
        context = self._span.get_span_context()
        self.exemplar: dict[str, str] | None = None
        if context.trace_flags.sampled:
            self.exemplar = {"trace_id": format_trace_id(context.trace_id)}

    def add_phases(self, stats: RequestStats) -> None:
        """Adds the child spans of an answered request, made of the engine's times."""
        from opentelemetry.context import Context
        from opentelemetry.trace import set_span_in_context

        if not self._span.is_recording():
            return
        parent = set_span_in_context(self._span, Context())
        # The engine's clock, which is this machine's monotonic one, as time of day.
        began = time.time_ns() - time.monotonic_ns() + round(stats.submitted * NANOSECONDS)
        decoding = {"attendant.steps": stats.steps, "attendant.mean_batch_rows": stats.mean_batch_rows}
        for phase, seconds in (("queue", stats.queue), ("encode", stats.encode), ("decode", stats.decode)):
            attributes = decoding if phase == "decode" else None
            child = self._tracer.start_span(phase, parent, attributes=attributes, start_time=began)
            began += round(seconds * NANOSECONDS)
            child.end(began)

    def end(self, *, model: str, code: str) -> None:
        from opentelemetry.trace import StatusCode

        self._span.set_attributes({"attendant.model": model, STATUS_CODE: code})
        if code in FAILURES:
            self._span.set_attribute("error.type", code)
            self._span.set_status(StatusCode.ERROR)
        self._span.end()


@contextmanager
def tracing(traces: Switch) -> Iterator[Tracer | None]:
    """Yields the tracer of requests, or None if they are not traced. At the end, the last spans are sent.

    Raises:
        UserError: the extra is not installed, or a variable of OpenTelemetry has an invalid value.
    """
    if traces == "off":
        yield None
        return
    try:
        provider = otlp_provider()
    except ImportError as error:
        raise UserError(f"--traces needs the extra `otel` ({error}): pip install 'attendant-seq2seq[otel]'") from error
    except Exception as error:  # for some of its variables OpenTelemetry has an error of its own
        raise UserError(f"--traces: OpenTelemetry can't use one of its variables OTEL_*: {reason_of(error)}") from error
    _warn_of_fixed()
    try:
        yield Tracer(provider)
    finally:
        sending, _ = on_a_thread(provider.shutdown, "traces")
        sending.join(FLUSH_SECONDS)


def _warn_of_fixed() -> None:
    """Logs a warning for each variable that has no effect, e.g. because it is set in all pods of a cluster."""
    for names, only in FIXED.items():
        variable = next((name for name in names if os.environ.get(name)), "")
        if variable and (value := os.environ[variable]) != only:
            log.warning(
                f"traces are sent by OTLP over gRPC, usually to port 4317; {variable} must be {only} or unset",
                extra={"value": value},
            )


def otlp_provider() -> "TracerProvider":
    """Sends spans by OTLP over gRPC, in batches, from a thread; those that can't be sent in time are dropped."""
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    ours = Resource({"service.name": "attendant", "service.version": VERSION})
    provider = TracerProvider(resource=ours.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
