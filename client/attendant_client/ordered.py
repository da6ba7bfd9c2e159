"""Many calls at a time, their results in the order of their inputs, in bounded memory."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# Results that may wait behind a slow one, per call in flight; beyond that, no new call begins.
WINDOW = 4


async def in_order(
    function: Callable[[_Item], Awaitable[_Result]],
    items: Iterable[_Item] | AsyncIterable[_Item],
    *,
    concurrency: int,
) -> AsyncGenerator[_Result, None]:
    """Yields `await function(item)` for each item, in the items' order, with at most `concurrency` calls in flight.

    A result is yielded as soon as it and all before it are there, also while the next item is still awaited. Items
    are drawn only as fast as the results are taken. The first exception, of a call or of the items, ends it; calls
    in flight are then cancelled, as they are when the caller closes the iterator.
    """
    if concurrency < 1:
        raise ValueError(f"concurrency must be at least 1, got {concurrency}")
    in_flight = asyncio.Semaphore(concurrency)
    room = asyncio.Semaphore(WINDOW * concurrency)
    begun: asyncio.Queue[asyncio.Task[_Result] | None] = asyncio.Queue()
    tasks: set[asyncio.Task[_Result]] = set()

    async def call(item: _Item) -> _Result:
        try:
            return await function(item)
        finally:
            in_flight.release()

    async def feed() -> None:
        try:
            async for item in _drawn(items):
                await room.acquire()
                await in_flight.acquire()
                task = asyncio.create_task(call(item))
                tasks.add(task)
                begun.put_nowait(task)
        finally:
            begun.put_nowait(None)

    feeder = asyncio.create_task(feed())
    try:
        while (task := await begun.get()) is not None:
            result = await task
            tasks.remove(task)
            yield result
            room.release()
        await feeder
    finally:
        feeder.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(feeder, *tasks, return_exceptions=True)


async def _drawn(items: Iterable[_Item] | AsyncIterable[_Item]) -> AsyncIterator[_Item]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item
