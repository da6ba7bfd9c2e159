"""Order, bounds and endings of `in_order`."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator

import pytest

from attendant_client.bulk import WINDOW, in_order


async def test_results_come_in_the_order_of_the_items() -> None:
    generator = random.Random(3)

    async def double(item: int) -> int:
        await asyncio.sleep(generator.random() / 100)
        return 2 * item

    assert [result async for result in in_order(double, range(100), concurrency=7)] == [2 * n for n in range(100)]


async def test_no_more_calls_at_once_than_allowed() -> None:
    in_flight, most = 0, 0

    async def call(item: int) -> None:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        await asyncio.sleep(0.001)
        in_flight -= 1

    async for _ in in_order(call, range(50), concurrency=5):
        pass
    assert most == 5


async def test_a_slow_one_lets_others_go_ahead_but_not_for_ever() -> None:
    drawn = 0

    def items() -> Iterator[int]:
        nonlocal drawn
        while drawn < 1000:
            drawn += 1
            yield drawn - 1

    release = asyncio.Event()

    async def call(item: int) -> int:
        if item == 0:
            await release.wait()
        return item

    results = in_order(call, items(), concurrency=2)
    first = asyncio.ensure_future(anext(results))
    await asyncio.sleep(0.05)
    assert 2 < drawn <= 2 * WINDOW + 1
    release.set()
    assert await first == 0
    assert [result async for result in results] == list(range(1, 1000))


async def test_a_result_does_not_wait_for_the_next_item() -> None:
    """Somebody types a line, and reads the answer before typing the next."""
    answered = asyncio.Event()

    async def items() -> AsyncIterator[int]:
        yield 1
        await asyncio.wait_for(answered.wait(), 5)
        yield 2

    async def call(item: int) -> int:
        return item

    seen = []
    async for result in in_order(call, items(), concurrency=4):
        seen.append(result)
        answered.set()
    assert seen == [1, 2]


async def test_an_error_of_a_call_ends_it_and_cancels_the_others() -> None:
    cancelled = []

    async def call(item: int) -> int:
        if item == 2:
            raise RuntimeError("two")
        try:
            await asyncio.sleep(0 if item < 2 else 60)
        except asyncio.CancelledError:
            cancelled.append(item)
            raise
        return item

    seen = []
    with pytest.raises(RuntimeError, match="two"):
        async for result in in_order(call, range(10), concurrency=4):
            seen.append(result)
    assert seen == [0, 1]
    assert cancelled
    assert set(cancelled) <= {3, 4, 5}


async def test_an_error_of_the_items_comes_after_their_results() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise OSError("the disk")

    async def call(item: int) -> int:
        await asyncio.sleep(0.01)
        return item

    seen = []
    with pytest.raises(OSError, match="the disk"):
        async for result in in_order(call, items(), concurrency=4):
            seen.append(result)
    assert seen == [1]


async def test_leaving_early_cancels_what_is_in_flight() -> None:
    ended = 0

    async def call(item: int) -> int:
        nonlocal ended
        try:
            await asyncio.sleep(60 if item else 0)
        finally:
            ended += 1
        return item

    results = in_order(call, range(100), concurrency=3)
    assert await anext(results) == 0
    await asyncio.sleep(0.01)
    await results.aclose()
    assert ended == 4


async def test_nothing_of_nothing() -> None:
    async def call(item: int) -> int:
        return item

    assert [result async for result in in_order(call, [], concurrency=1)] == []


async def test_concurrency_of_nothing() -> None:
    async def call(item: int) -> int:
        return item

    with pytest.raises(ValueError, match="concurrency must be at least 1, got 0"):
        _ = [result async for result in in_order(call, [1], concurrency=0)]
