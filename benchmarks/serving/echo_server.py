"""A grpc.aio service of bytes: for peers that have no server, and empty, as the limit of what serving costs."""

import asyncio
import signal
from collections.abc import AsyncIterator
from typing import Any

import grpc


async def serve(service: str, handlers: dict[str, Any]) -> None:
    """Serves on a free port, which it prints, until SIGTERM.

    Args:
        service: its full name.
        handlers: grpc's, by the names of the calls; without serializers both sides are bytes.
    """
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    print(f"serving on 127.0.0.1:{port}", flush=True)
    await ended.wait()
    await server.stop(None)


async def _unary(request: bytes, context: object) -> bytes:
    return request


async def _stream(requests: AsyncIterator[bytes], context: Any) -> None:
    async for request in requests:
        await context.write(request)


async def _refuse(request: bytes, context: Any) -> None:
    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no room")


def echo() -> None:
    """Answers what it is asked, by the names of our calls."""
    handlers: dict[str, Any] = {
        "Generate": grpc.unary_unary_rpc_method_handler(_unary),
        "GenerateMany": grpc.unary_unary_rpc_method_handler(_unary),
        "GenerateBatch": grpc.stream_stream_rpc_method_handler(_stream),
        "GenerateBatches": grpc.stream_stream_rpc_method_handler(_stream),
    }
    _serve_as_ours(handlers)


def refuse() -> None:
    """Refuses every Generate at once."""
    _serve_as_ours({"Generate": grpc.unary_unary_rpc_method_handler(_refuse)})


def _serve_as_ours(handlers: dict[str, Any]) -> None:
    """On uvloop, as our server does: its time is gRPC's own."""
    import uvloop  # noqa: PLC0415  # a peer's environment has none

    uvloop.run(serve("attendant.v1.Seq2Seq", handlers))
