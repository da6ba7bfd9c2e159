"""`python -m server` without its default guards: gRPC reads the messages, and clients are not identified."""

from collections.abc import AsyncIterator
from typing import Any

import grpc

from attendant.runtime.command import exit_command
from attendant.server import app
from attendant.server.__main__ import main
from attendant.server.call import Rpc
from attendant.server.errors import Failed
from attendant.server.grpc import port as listening
from attendant.server.grpc.handlers import GrpcCall, Handlers, abort

KEPT = {"grpc.so_reuseport", "grpc.max_receive_message_length", "grpc.max_send_message_length"}


class BareHandlers(Handlers):
    """Handlers that let gRPC read the requests, and admit all clients."""

    def _handler(self, rpc: Rpc, metrics: object) -> Any:
        async def answer(request: Any, context: Any) -> Any:
            call = GrpcCall(context)
            try:
                return await rpc.answer(request, call)
            except Failed as failed:
                await abort(context, failed.error, call.request_id)

        async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
            call = GrpcCall(context)
            try:
                async for response in rpc.answer(request, call):
                    yield response
            except Failed as failed:
                await abort(context, failed.error, call.request_id)

        make: Any = {
            (False, False): grpc.unary_unary_rpc_method_handler,
            (False, True): grpc.unary_stream_rpc_method_handler,
            (True, True): grpc.stream_stream_rpc_method_handler,
        }[rpc.streams_requests, rpc.streams_responses]
        return make(
            stream if rpc.streams_responses else answer,
            request_deserializer=rpc.request_class.FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )


if __name__ == "__main__":
    vars(app).update(Handlers=BareHandlers)
    options = tuple(option for option in listening.OPTIONS if option[0] in KEPT)
    vars(listening).update(OPTIONS=options)
    exit_command("server", main)
