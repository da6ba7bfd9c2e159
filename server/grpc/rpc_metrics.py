"""The usual `grpc_server_*` metrics, as go-grpc-prometheus names them, for every RPC that the server knows."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import lru_cache, partial
from typing import Any

import grpc
from prometheus_client import CollectorRegistry

from attendant.server import deadlines
from attendant.server.interceptors import wrapped
from attendant.server.metrics import REQUEST_BUCKETS, Counter, Histogram

LABELS = ("grpc_type", "grpc_service", "grpc_method")

# (requests are streamed, responses are streamed) -> grpc_type
TYPES = {(False, False): "unary", (False, True): "server_stream", (True, True): "bidi_stream"}


class GrpcMetrics(grpc.aio.ServerInterceptor):
    """Counts RPCs and messages, and times them. A path that no service has is not counted: it could be anything."""

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

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        return None if handler is None else self._measured(handler_call_details.method, handler)

    def _measured(self, path: str, handler: Any) -> Any:
        kind = TYPES[handler.request_streaming, handler.response_streaming]
        _, service, method = path.split("/")
        return wrapped(handler, partial(_MeasuredRpc, self, (kind, service, method)))


class _MeasuredRpc:
    """A method whose calls are counted and timed; its labels are resolved once, for that takes a microsecond each."""

    def __init__(
        self, metrics: GrpcMetrics, labels: tuple[str, str, str], behaviour: Callable[[Any, Any], Any]
    ) -> None:
        self._behaviour = behaviour
        self._started = metrics.started.labels(*labels)
        self._handled = lru_cache(maxsize=None)(partial(metrics.handled.labels, *labels))
        self._received = metrics.received.labels(*labels)
        self._sent = metrics.sent.labels(*labels)
        self._seconds = metrics.seconds.labels(*labels)

    async def answer(self, request: Any, context: Any) -> Any:
        """Handles a call that has one request and one response."""
        with _Watching(self, context):
            self._received.inc()
            response = await self._behaviour(request, context)
            self._sent.inc()
            return response

    async def stream(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Handles a call that has any number of responses."""
        with _Watching(self, context):
            answer = self._behaviour(self._incoming(request), context)
            if hasattr(answer, "__aiter__"):
                async for response in answer:
                    self._sent.inc()
                    yield response
            else:  # it writes to the context itself, as the health servicer's Watch does
                await answer

    def _incoming(self, request: Any) -> Any:
        """Counts a request, or each one of a stream as it is read."""
        if hasattr(request, "__aiter__"):
            return self._counted(request)
        self._received.inc()
        return request

    async def _counted(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for message in requests:
            self._received.inc()
            yield message

    def begin(self) -> None:
        """A call has come."""
        self._started.inc()

    def end(self, code: str, seconds: float) -> None:
        """It has ended so, after so long."""
        self._handled(code).inc()
        self._seconds.observe(seconds)


class _Watching:
    """Around the handling of a call."""

    __slots__ = ("_began", "_context", "_rpc")

    def __init__(self, rpc: _MeasuredRpc, context: Any) -> None:
        self._rpc, self._context, self._began = rpc, context, time.monotonic()

    def __enter__(self) -> None:
        self._rpc.begin()

    def __exit__(self, kind: object, raised: BaseException | None, traceback: object) -> None:
        # Set where the RPC was aborted; None where it was not.
        code = self._context.code()
        self._rpc.end(code.name if code else self._ending(raised), time.monotonic() - self._began)

    def _ending(self, raised: BaseException | None) -> str:
        if raised is None or isinstance(raised, grpc.aio.AbortError):
            return "OK"
        if isinstance(raised, asyncio.CancelledError | GeneratorExit):
            return deadlines.cancellation_code(self._context)
        return "UNKNOWN"
