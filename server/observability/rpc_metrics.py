"""The usual `grpc_server_*` metrics, as go-grpc-prometheus names them, for every RPC that the server knows."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import grpc
from prometheus_client import CollectorRegistry

from attendant.server.counter import Counter, CounterChild
from attendant.server.histogram import Histogram
from attendant.server.observability.metrics import REQUEST_BUCKETS

LABELS = ("grpc_type", "grpc_service", "grpc_method")


class _Rpc(NamedTuple):
    grpc_type: str
    grpc_service: str
    grpc_method: str


class GrpcMetrics(grpc.aio.ServerInterceptor):
    """Counts RPCs and messages, and times them. A path that no service has is not counted: it could be anything."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._started = Counter("grpc_server_started", "RPCs started.", LABELS, registry=registry)
        self._handled = Counter("grpc_server_handled", "RPCs ended.", (*LABELS, "grpc_code"), registry=registry)
        self._received = Counter("grpc_server_msg_received", "Messages received.", LABELS, registry=registry)
        self._sent = Counter("grpc_server_msg_sent", "Messages sent.", LABELS, registry=registry)
        self._seconds = Histogram(
            "grpc_server_handling_seconds", "Duration of RPCs.", LABELS, registry=registry, buckets=REQUEST_BUCKETS
        )
        # Path -> handler, for the paths that a service has: they are few, and don't change once a server runs.
        self._handlers: dict[str, Any] = {}

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        path = handler_call_details.method
        if path not in self._handlers:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None
            self._handlers[path] = self._measured(path, handler)
        return self._handlers[path]

    def _measured(self, path: str, handler: Any) -> Any:
        kind, behaviour, make = next(
            (kind, behaviour, make)
            for kind, behaviour, make in (
                ("unary", handler.unary_unary, grpc.unary_unary_rpc_method_handler),
                ("server_stream", handler.unary_stream, grpc.unary_stream_rpc_method_handler),
                ("client_stream", handler.stream_unary, grpc.stream_unary_rpc_method_handler),
                ("bidi_stream", handler.stream_stream, grpc.stream_stream_rpc_method_handler),
            )
            if behaviour is not None
        )
        _, service, method = path.split("/")
        wrap = self._streaming if handler.response_streaming else self._unary
        return make(
            wrap(_Rpc(kind, service, method), behaviour, handler.request_streaming),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _unary(self, rpc: _Rpc, behaviour: Callable[[Any, Any], Awaitable[Any]], streams_in: bool) -> Any:
        received, sent = self._received.labels(*rpc), self._sent.labels(*rpc)

        async def handle(request: Any, context: Any) -> Any:
            with self._watching(rpc, context):
                response = await behaviour(self._incoming(request, received, streams_in), context)
                sent.inc()
                return response

        return handle

    def _streaming(self, rpc: _Rpc, behaviour: Callable[[Any, Any], Any], streams_in: bool) -> Any:
        received, sent = self._received.labels(*rpc), self._sent.labels(*rpc)

        async def handle(request: Any, context: Any) -> AsyncIterator[Any]:
            with self._watching(rpc, context):
                answer = behaviour(self._incoming(request, received, streams_in), context)
                if hasattr(answer, "__aiter__"):
                    async for response in answer:
                        sent.inc()
                        yield response
                else:  # it writes to the context itself, as the health servicer's Watch does
                    await answer

        return handle

    @staticmethod
    def _incoming(request: Any, received: CounterChild, streams_in: bool) -> Any:
        if not streams_in:
            received.inc()
            return request

        async def counted() -> AsyncIterator[Any]:
            async for message in request:
                received.inc()
                yield message

        return counted()

    @contextmanager
    def _watching(self, rpc: _Rpc, context: Any) -> Iterator[None]:
        began = time.monotonic()
        self._started.labels(*rpc).inc()
        failed_as = "OK"
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit):
            failed_as = cancellation_code(context)
            raise
        except grpc.aio.AbortError:
            raise
        except Exception:
            failed_as = "UNKNOWN"
            raise
        finally:
            # Set where the RPC was aborted; None where it was not.
            code = context.code()
            self._handled.labels(*rpc, code.name if code else failed_as).inc()
            self._seconds.labels(*rpc).observe(time.monotonic() - began)


def cancellation_code(context: Any) -> str:
    """Why an RPC's task was cancelled: gRPC does not say, but the deadline does."""
    remaining = context.time_remaining()
    return "DEADLINE_EXCEEDED" if remaining is not None and remaining <= 0 else "CANCELLED"
