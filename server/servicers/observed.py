"""The standard grpc_server_* metrics, for every method that the server has, health and reflection included."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from prometheus_client import CollectorRegistry, Counter, Histogram

from server.metrics import SECONDS

LABELS = ("grpc_type", "grpc_service", "grpc_method")

Handler = grpc.RpcMethodHandler[Any, Any]


class GrpcMetrics(grpc.aio.ServerInterceptor[Any, Any]):
    """Counts calls and messages under the names that gRPC servers in any language use."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._started = Counter("grpc_server_started_total", "RPCs started.", LABELS, registry=registry)
        self._handled = Counter("grpc_server_handled_total", "RPCs ended.", (*LABELS, "grpc_code"), registry=registry)
        self._received = Counter("grpc_server_msg_received_total", "Messages received.", LABELS, registry=registry)
        self._sent = Counter("grpc_server_msg_sent_total", "Messages sent.", LABELS, registry=registry)
        self._seconds = Histogram(
            "grpc_server_handling_seconds", "Duration of RPCs.", LABELS, buckets=SECONDS, registry=registry
        )

    async def intercept_service(  # type: ignore[override]  # the stubs leave out that there may be no such method
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        service, _, method = handler_call_details.method.lstrip("/").rpartition("/")
        kind = ("client_" if handler.request_streaming else "") + ("server_" if handler.response_streaming else "")
        kind = {"": "unary", "client_": "client_stream", "server_": "server_stream"}.get(kind, "bidi_stream")
        observed = _Observed(self, handler, (kind, service, method))
        make = _FACTORIES[handler.request_streaming, handler.response_streaming]
        behavior = observed.stream if handler.response_streaming else observed.unary
        return make(behavior, handler.request_deserializer, handler.response_serializer)


_FACTORIES = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


class _Observed:
    """One call's handler, with its counts."""

    def __init__(self, metrics: GrpcMetrics, handler: Handler, labels: tuple[str, str, str]) -> None:
        self._metrics, self._handler, self._labels = metrics, handler, labels
        self._behavior: Any = next(
            behavior
            for behavior in (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
            if behavior is not None
        )

    async def unary(self, request: Any, context: Any) -> Any:
        with _Watch(self._metrics, self._labels, context):
            response = await self._behavior(self._count_in(request), context)
            self._metrics._sent.labels(*self._labels).inc()
            return response

    async def stream(self, request: Any, context: Any) -> AsyncIterator[Any]:
        with _Watch(self._metrics, self._labels, context):
            async for response in self._behavior(self._count_in(request), context):
                self._metrics._sent.labels(*self._labels).inc()
                yield response

    def _count_in(self, request: Any) -> Any:
        received = self._metrics._received.labels(*self._labels)
        if not self._handler.request_streaming:
            received.inc()
            return request

        async def counted() -> AsyncIterator[Any]:
            async for message in request:
                received.inc()
                yield message

        return counted()


class _Watch:
    """Times a call, and counts its start and its end by code."""

    def __init__(self, metrics: GrpcMetrics, labels: tuple[str, str, str], context: Any) -> None:
        self._metrics, self._labels, self._context = metrics, labels, context

    def __enter__(self) -> None:
        self._began = time.perf_counter()
        self._metrics._started.labels(*self._labels).inc()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._metrics._seconds.labels(*self._labels).observe(time.perf_counter() - self._began)
        self._metrics._handled.labels(*self._labels, self._code(kind)).inc()

    def _code(self, kind: type[BaseException] | None) -> str:
        code = self._context.code()
        # grpc.aio gives an int where the handler set none, and a StatusCode where it did.
        if isinstance(code, grpc.StatusCode) and code is not grpc.StatusCode.OK:
            return str(code.name)
        if kind is None or issubclass(kind, GeneratorExit):
            return "OK"
        return "UNKNOWN" if issubclass(kind, Exception) else "CANCELLED"
