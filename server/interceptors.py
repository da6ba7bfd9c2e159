"""What gRPC's interceptors have in common: a wrapper around a method of whatever kind."""

from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

import grpc

# (requests are streamed, responses are streamed) -> what makes such a handler, and the handler's attribute for its
# method. No method here has many requests and one response.
_KINDS = {
    (False, False): (grpc.unary_unary_rpc_method_handler, "unary_unary"),
    (False, True): (grpc.unary_stream_rpc_method_handler, "unary_stream"),
    (True, True): (grpc.stream_stream_rpc_method_handler, "stream_stream"),
}


class Wrapper(Protocol):
    """What stands around a method: one of the two is called in its place."""

    async def answer(self, request: Any, context: Any) -> Any:
        """For a method that has one request and one response."""

    def stream(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """For a method that has any number of responses."""


def wrapped(handler: Any, make_wrapper: Callable[[Callable[[Any, Any], Any]], Wrapper]) -> Any:
    """A handler of the same kind, around whose method something stands.

    Args:
        make_wrapper: is given the method.
    """
    make_handler, attribute = _KINDS[handler.request_streaming, handler.response_streaming]
    wrapper = make_wrapper(getattr(handler, attribute))
    return make_handler(
        wrapper.stream if handler.response_streaming else wrapper.answer,
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )
