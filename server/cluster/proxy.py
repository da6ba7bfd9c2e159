"""The handlers of Ray's gRPC proxies, which let clients retry failed calls.

If a call fails, Ray's own handlers return an empty message in addition to the status. gRPC's retries ignore that, as it
is an answer; and a call whose replica has died is INTERNAL, which is not retried either. Here the status replaces the
answer, and such a call is UNAVAILABLE: decoding it again is safe.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc

from attendant_client.v1 import seq2seq_pb2_grpc

OF_DEAD_REPLICAS = "The actor "
"""The beginning of Ray's message if a replica has died or can't be reached. Our own errors begin otherwise."""


def add_seq2seq(servicer: Any, server: Any) -> None:
    """Adds our methods to a proxy's server. Ray calls this function by its name, with a stand-in for a servicer."""
    seq2seq_pb2_grpc.add_Seq2SeqServicer_to_server(servicer, _Collected(server))  # type: ignore[no-untyped-call]


class _Collected:
    """Takes the methods from the generated code, and passes them on to Ray's server in our form."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        """Ignores the same methods in gRPC's older form."""

    def add_registered_method_handlers(self, service: str, methods: Mapping[str, Any]) -> None:
        paths = {f"/{service}/{name}": handler for name, handler in methods.items()}
        self._server.add_generic_rpc_handlers((_WithStatus(paths),))


class _WithStatus(grpc.GenericRpcHandler):
    """Methods whose failures end the call with their status.

    Attributes:
        _method_handlers: named as in gRPC's own class, because Ray adds its own handlers there.
    """

    def __init__(self, handlers: Mapping[str, Any]) -> None:
        self._method_handlers = handlers

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        handler = self._method_handlers.get(handler_call_details.method)
        if handler is None:
            return None

        async def answer(request: Any, context: Any) -> Any:
            response = await handler.unary_unary(request, context)
            await _end(context)
            return response

        def streaming(behaviour: Any) -> Any:
            async def answers(request: Any, context: Any) -> AsyncIterator[Any]:
                async for response in behaviour(request, context):
                    yield response
                await _end(context)

            return answers

        return handler._replace(
            unary_unary=answer,
            unary_stream=streaming(handler.unary_stream),
            stream_stream=streaming(handler.stream_stream),
        )


async def _end(context: Any) -> None:
    """Raises grpc.aio.AbortError: the call has failed."""
    code, details = context.code(), context.details()
    if not code or code is grpc.StatusCode.OK:  # 0 if no status was set
        return
    if code is grpc.StatusCode.INTERNAL and details.startswith(OF_DEAD_REPLICAS):
        code = grpc.StatusCode.UNAVAILABLE
    await context.abort(code, details, context.trailing_metadata())
