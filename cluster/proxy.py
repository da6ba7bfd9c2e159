"""What Ray's gRPC proxies serve, so that clients can try again what Ray could not do.

A proxy returns an empty message where a call fails, and sets the status beside it. To gRPC's own retries that is an
answer, which they leave alone; and a call whose replica has died is INTERNAL, which they had better leave alone too.
Here a status takes the place of the answer, and such a call is UNAVAILABLE: decoding it again is safe.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc

from attendant_client.v1 import seq2seq_pb2_grpc

OF_DEAD_REPLICAS = "The actor "
"""How Ray's message begins where a replica has died or can't be reached. Our own errors begin otherwise."""


def add_seq2seq(servicer: Any, server: Any) -> None:
    """Adds our methods to a proxy's server. Ray finds this by its name, and gives it a stand-in for a servicer."""
    seq2seq_pb2_grpc.add_Seq2SeqServicer_to_server(servicer, _Collected(server))  # type: ignore[no-untyped-call]


class _Collected:
    """Takes the methods from the generated code, and passes them on to Ray's server in our form."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        """The same methods, in gRPC's form."""

    def add_registered_method_handlers(self, service: str, methods: Mapping[str, Any]) -> None:
        paths = {f"/{service}/{name}": handler for name, handler in methods.items()}
        self._server.add_generic_rpc_handlers((_WithStatus(paths),))


class _WithStatus(grpc.GenericRpcHandler):
    """Methods whose failures end the call by their status.

    Attributes:
        _method_handlers: as in gRPC's own class, since that is where Ray puts its proxy's.
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
    if not code or code is grpc.StatusCode.OK:  # 0 where nobody has set one
        return
    if code is grpc.StatusCode.INTERNAL and details.startswith(OF_DEAD_REPLICAS):
        code = grpc.StatusCode.UNAVAILABLE
    await context.abort(code, details, context.trailing_metadata())
