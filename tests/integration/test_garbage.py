"""Tests that a call is freed as soon as it ends, without Python's garbage collector.

The collector pauses all calls while it runs.
"""

import gc
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import grpc

from attendant_client.v1 import seq2seq_pb2 as messages
from tests.serving import Served, fake_stepper, served

NUM_CALLS = 20
ANSWERED = messages.GenerateRequest(text="abc")
REFUSED = messages.GenerateRequest(text="abc", decoding=messages.DecodingOptions(beam_size=1000))
UNKNOWN = messages.GenerateRequest(text="abc", model="unknown")
CODES = (
    (ANSWERED, grpc.StatusCode.OK),
    (REFUSED, grpc.StatusCode.INVALID_ARGUMENT),
    (UNKNOWN, grpc.StatusCode.NOT_FOUND),
)
LISTS = (messages.GenerateManyRequest(requests=[ANSWERED, REFUSED, UNKNOWN]), messages.GenerateManyRequest())
TYPES_OF_A_CALL = {"RPCState", "_ServicerContext", "RequestContext"}


@asynccontextmanager
async def collected_types() -> AsyncIterator[Counter[str]]:
    """Disables the collector within the block; then counts the types of the objects that the block left in cycles."""
    counts = Counter[str]()
    gc.collect()
    gc.disable()
    try:
        yield counts
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        counts.update(type(garbage).__name__ for garbage in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def call_all(server: Served) -> None:
    """Calls each method with a request that is answered, one that is refused, and one for an unknown model."""
    for request, code in CODES:
        assert await server.stub.Generate(request).code() == code
        stream = server.stub.GenerateStream(request)
        with suppress(grpc.RpcError):
            while await stream.read() is not grpc.aio.EOF:
                pass
        assert await stream.code() == code
    for requests in LISTS:
        with suppress(grpc.RpcError):
            await server.stub.GenerateMany(requests)


async def test_ended_calls_leave_no_cycle() -> None:
    async with served(fake_stepper()) as server:
        await call_all(server)  # the first calls make objects that stay
        async with collected_types() as counts:
            for _ in range(NUM_CALLS):
                await call_all(server)
    assert not TYPES_OF_A_CALL & counts.keys()
