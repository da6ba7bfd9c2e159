"""A call that has ended is freed at once: what only Python's collector can free is freed in pauses of all calls."""

import gc
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

import grpc
import pytest

from attendant_client.v1 import seq2seq_pb2 as messages
from tests.serving import fake_stepper, served

NUM_CALLS = 20

REFUSED = messages.GenerateRequest(text="abc", decoding=messages.DecodingOptions(beam_size=1000))
UNKNOWN = messages.GenerateRequest(text="abc", model="unknown")
OF_A_CALL = {"RPCState", "_ServicerContext", "RequestContext"}


@pytest.fixture
def _only_when_asked() -> Iterator[None]:
    """The collector runs in `left_by` alone."""
    gc.disable()
    try:
        yield
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def left_by(ask: Callable[[], Awaitable[None]]) -> Counter[str]:
    """Types of what refers to itself, and is not referred to, after these calls; the first one makes what stays."""
    await ask()
    gc.collect()
    for _ in range(NUM_CALLS):
        await ask()
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    return Counter(type(one).__name__ for one in gc.garbage)


@pytest.mark.usefixtures("_only_when_asked")
@pytest.mark.parametrize("method", ["Generate", "GenerateStream"])
@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (messages.GenerateRequest(text="abc"), grpc.StatusCode.OK),
        (REFUSED, grpc.StatusCode.INVALID_ARGUMENT),
        (UNKNOWN, grpc.StatusCode.NOT_FOUND),
    ],
)
async def test_an_ended_call_leaves_no_cycle(
    request_: messages.GenerateRequest, code: grpc.StatusCode, method: str
) -> None:
    async with served(fake_stepper()) as running:

        async def ask() -> None:
            call = getattr(running.stub, method)(request_)
            with suppress(grpc.RpcError):
                while method == "GenerateStream" and await call.read() is not grpc.aio.EOF:
                    pass
            assert await call.code() == code

        assert not OF_A_CALL & (await left_by(ask)).keys()


@pytest.mark.usefixtures("_only_when_asked")
async def test_an_ended_list_leaves_no_cycle() -> None:
    lists = [
        messages.GenerateManyRequest(requests=[messages.GenerateRequest(text="abc"), REFUSED, UNKNOWN]),
        messages.GenerateManyRequest(),
    ]
    async with served(fake_stepper()) as running:

        async def ask() -> None:
            for asked in lists:
                with suppress(grpc.RpcError):
                    await running.stub.GenerateMany(asked)

        assert not OF_A_CALL & (await left_by(ask)).keys()
