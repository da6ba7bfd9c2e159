"""Reading of messages: what gRPC has begun is ended, whoever waits for it."""

import asyncio
from typing import Any

import pytest

from attendant.server.grpc.incoming import read


class Call:
    """Stands for gRPC's context, which frees what a reading took behind the waiting for it."""

    def __init__(self) -> None:
        self.arrived: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.aborted: Exception | None = None
        self.has_freed = False

    async def read(self) -> Any:
        raw = await self.arrived
        self.has_freed = True
        if self.aborted is not None:
            raise self.aborted
        return raw


async def test_a_message_that_arrives_is_read() -> None:
    call = Call()
    reading = read(call)
    call.arrived.set_result(b"ab")
    assert await reading == b"ab"


async def test_a_cancelled_reading_goes_on_until_its_call_has_ended() -> None:
    call = Call()
    reading = read(call)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert not call.arrived.cancelled()
    call.arrived.set_result(b"")
    await asyncio.sleep(0)
    assert call.has_freed


async def test_what_a_reading_raises_is_raised() -> None:
    call = Call()
    reading = read(call)
    call.aborted = ValueError("aborted")
    call.arrived.set_result(b"")
    with pytest.raises(ValueError, match="aborted"):
        await reading
