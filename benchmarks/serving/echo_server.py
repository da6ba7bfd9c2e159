"""An empty service, as the limit of what serving can cost: python -m benchmarks.serving.echo_server.

grpc.aio on uvloop, as our server has them, with the names of our calls; answers bytes as they came. What it takes per
call is gRPC's own.
"""

import asyncio
import signal
from collections.abc import AsyncIterator
from typing import Any

import grpc
import uvloop

from benchmarks.serving.attendant_server import BULK, UNARY


async def _unary(request: bytes, context: object) -> bytes:
    return request


async def _stream(requests: AsyncIterator[bytes], context: Any) -> None:
    async for request in requests:
        await context.write(request)


async def serve() -> None:
    service, unary = UNARY.strip("/").split("/")
    # Without serializers both sides are bytes.
    handlers: dict[str, Any] = {
        unary: grpc.unary_unary_rpc_method_handler(_unary),
        BULK.rpartition("/")[2]: grpc.stream_stream_rpc_method_handler(_stream),
    }
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    print(f"serving on 127.0.0.1:{port}", flush=True)
    await ended.wait()
    await server.stop(None)


if __name__ == "__main__":
    uvloop.run(serve())
