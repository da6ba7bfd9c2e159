"""Where requests meet traces, by --traces: each request is a span, whose children are queue, encode and decode.

A switch of the process, like the log. While it is off, OpenTelemetry is not imported, and a request reads three
variables.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from attendant.runtime.errors import UserError
from attendant.runtime.process import on_a_thread
from attendant.server.config import Switch

if TYPE_CHECKING:  # it needs an extra
    from attendant.server.observability.spans import SpanTrace, SpanTracer

FLUSH_SECONDS = 1.0
"""At the end of the server: how long the last spans may take to be sent. A collector that hangs costs no more."""

TRACE: "ContextVar[SpanTrace | None]" = ContextVar("trace", default=None)
"""Of the request that is being answered."""

_tracer: "SpanTracer | None" = None


def trace_requests(tracer: "SpanTracer | None") -> None:
    """Switches traces on, or off."""
    global _tracer  # noqa: PLW0603  # a process has one collector
    _tracer = tracer


def tracer() -> "SpanTracer | None":
    """None while traces are off."""
    return _tracer


@contextmanager
def tracing(traces: Switch) -> Iterator[None]:
    """Traces requests until the end of the context, if that is switched on, and sends what is left.

    Raises:
        UserError: the extra is not installed.
    """
    if traces == "off":
        yield
        return
    try:
        from attendant.server.observability.spans import otlp_provider, tracer_of  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise UserError(f"--traces needs the extra `otel` ({error}): pip install 'attendant-seq2seq[otel]'") from error
    provider = otlp_provider()
    trace_requests(tracer_of(provider))
    try:
        yield
    finally:
        trace_requests(None)
        sending, _ = on_a_thread(provider.shutdown, "traces")
        sending.join(FLUSH_SECONDS)
