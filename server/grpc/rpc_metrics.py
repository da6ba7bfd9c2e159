"""The usual `grpc_server_*` metrics, with go-grpc-prometheus's names, for every method of the table."""

import asyncio
import time
from functools import lru_cache, partial

from prometheus_client import CollectorRegistry

from attendant.server.errors import AttendantError, Failed
from attendant.server.grpc.gate import GrpcCall, Rpc
from attendant.server.metrics import REQUEST_BUCKETS, Counter, Histogram

LABELS = ("grpc_type", "grpc_service", "grpc_method")

# (requests are streamed, responses are streamed) -> grpc_type
TYPES = {(False, False): "unary", (False, True): "server_stream", (True, True): "bidi_stream"}


class GrpcMetrics:
    """Counts RPCs and messages, and times them. Unknown methods are not counted: their names could be anything."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, namespace="grpc_server", registry=registry)
        self.started = counter("started", "RPCs started.", LABELS)
        self.handled = counter("handled", "RPCs ended.", (*LABELS, "grpc_code"))
        self.received = counter("msg_received", "Messages received.", LABELS)
        self.sent = counter("msg_sent", "Messages sent.", LABELS)
        self.seconds = Histogram(
            "handling_seconds",
            "Duration of RPCs.",
            LABELS,
            namespace="grpc_server",
            registry=registry,
            buckets=REQUEST_BUCKETS,
        )

    def of(self, rpc: Rpc) -> "RpcMetrics":
        """Returns the metrics of a method."""
        return RpcMetrics(self, (TYPES[rpc.streams_requests, rpc.streams_responses], rpc.service, rpc.name))


class RpcMetrics:
    """The metrics of one method. Labels are resolved once, since that takes a microsecond each."""

    def __init__(self, metrics: GrpcMetrics, labels: tuple[str, str, str]) -> None:
        self.started = metrics.started.labels(*labels)
        self.handled = lru_cache(maxsize=None)(partial(metrics.handled.labels, *labels))
        self.received = metrics.received.labels(*labels)
        self.sent = metrics.sent.labels(*labels)
        self.seconds = metrics.seconds.labels(*labels)

    def handling(self, call: GrpcCall) -> "_Handling":
        """Counts and times a call as a context manager."""
        return _Handling(self, call)


class _Handling:
    __slots__ = ("_began", "_call", "_metrics")

    def __init__(self, metrics: RpcMetrics, call: GrpcCall) -> None:
        self._metrics, self._call, self._began = metrics, call, time.monotonic()

    def __enter__(self) -> None:
        self._metrics.started.inc()

    def __exit__(self, kind: object, raised: BaseException | None, traceback: object) -> None:
        self._metrics.handled(self._code(raised)).inc()
        self._metrics.seconds.observe(time.monotonic() - self._began)

    def _code(self, raised: BaseException | None) -> str:
        if isinstance(raised, Failed):
            return raised.error.code
        if isinstance(raised, AttendantError):
            return raised.code
        if isinstance(raised, asyncio.CancelledError | GeneratorExit):
            return self._call.cancellation_code
        # A library's method may have set a code.
        code = self._call.context.code()
        return code.name if code else "OK" if raised is None else "UNKNOWN"
