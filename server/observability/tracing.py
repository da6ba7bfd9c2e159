"""Where requests meet traces, by --traces: each request is a span, whose children are queue, encode and decode.

A switch of the process, like the log. While it is off, OpenTelemetry is not imported, and a request reads three
variables.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from attendant.runtime.errors import UserError
from attendant.runtime.limited import on_a_thread
from attendant.server.config import Switch
from attendant.server.engine.request import RequestStats

FLUSH_SECONDS = 1.0
"""At the end of the server: how long the last spans may take to be sent. A collector that hangs costs no more."""

Exemplar = dict[str, str]
"""What a measurement keeps of the request that it is of: the trace."""


class RequestTrace(Protocol):
    """A request, as its trace sees it.

    Attributes:
        exemplar: None where the trace is not recorded.
    """

    exemplar: Exemplar | None

    def phases(self, stats: RequestStats) -> None:
        """The request was answered: where its time went."""

    def end(self, *, model: str, code: str) -> None:
        """The request has ended, somehow."""


class Tracer(Protocol):
    """Makes the traces of requests."""

    def note_parent(self, metadata: Iterable[tuple[str, str | bytes]]) -> None:
        """The call that is being handled has this metadata, or these headers: its requests belong to their trace."""

    def begin(self, method: str, request_id: str) -> RequestTrace:
        """A request has come, of the call that is being handled."""


TRACE: ContextVar[RequestTrace | None] = ContextVar("trace", default=None)
"""Of the request that is being answered."""

_tracer: Tracer | None = None


def trace_requests(tracer: Tracer | None) -> None:
    """Switches traces on, or off."""
    global _tracer  # noqa: PLW0603  # a process has one collector
    _tracer = tracer


def tracer() -> Tracer | None:
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
        raise UserError(f"--traces needs the extra `otel` ({error}): pip install '.[cpu,otel]'") from error
    provider = otlp_provider()
    trace_requests(tracer_of(provider))
    try:
        yield
    finally:
        trace_requests(None)
        sending, _ = on_a_thread(provider.shutdown, "traces")
        sending.join(FLUSH_SECONDS)
