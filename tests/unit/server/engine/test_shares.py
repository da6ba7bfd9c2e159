"""Tests of permits and memory for answers: which stream waits, which continues, and that none of them is lost."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from attendant.server.engine.client import FairSemaphore
from attendant.server.grpc.requests import STALLED_SECONDS, AnswerBudget


async def begun(waiting: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
    """Starts a task and lets it run until it waits."""
    task = asyncio.create_task(waiting)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


async def test_one_client_alone_has_all_permits() -> None:
    semaphore = FairSemaphore(3)
    for _ in range(3):
        await asyncio.wait_for(semaphore.acquire("a"), 1)
    fourth = await begun(semaphore.acquire("a"))
    assert not fourth.done()
    semaphore.release()
    await asyncio.wait_for(fourth, 1)
    assert semaphore.num_held == 3


async def test_clients_take_turns_however_many_streams_they_have() -> None:
    semaphore, log = FairSemaphore(1), list[str]()
    await semaphore.acquire("a")

    async def in_turn(client: str) -> None:
        await semaphore.acquire(client)
        log.append(client)

    tasks = [await begun(in_turn(client)) for client in "aaaabb"]
    for _ in tasks:
        semaphore.release()
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert log == ["a", "b", "a", "b", "a", "a"]


async def test_a_stream_that_ends_while_it_waits_costs_no_permit_and_no_turn() -> None:
    semaphore = FairSemaphore(1)
    await semaphore.acquire("a")
    gone, served, other = [await begun(semaphore.acquire(client)) for client in "aab"]
    gone.cancel()
    await asyncio.sleep(0)
    semaphore.release()
    await asyncio.wait_for(served, 1)
    assert not other.done()
    semaphore.release()
    # The permit is assigned to `other`, which has not resumed yet.
    other.cancel()
    await asyncio.gather(gone, other, return_exceptions=True)
    assert semaphore.num_held == 0
    await asyncio.wait_for(semaphore.acquire("c"), 1)


async def test_a_stream_may_hold_as_many_bytes_as_remain_free() -> None:
    budget = AnswerBudget(unread_seconds=1, max_bytes=120)
    first, second = budget.open(), budget.open()
    for _ in range(6):
        await asyncio.wait_for(first.take(10), 1)
    assert not (await begun(first.take(10))).done(), "half of it, for a stream alone"
    for _ in range(3):
        await asyncio.wait_for(second.take(10), 1)
    blocked = await begun(second.take(10))
    assert not blocked.done(), "half of the other half"
    second.give_back(10)
    await asyncio.wait_for(blocked, 1)
    assert budget.held_bytes == first.held_bytes + second.held_bytes == 90


async def test_a_stream_that_holds_nothing_never_waits() -> None:
    budget = AnswerBudget(unread_seconds=1, max_bytes=100)
    for _ in range(3):
        await asyncio.wait_for(budget.open().take(90), 1)


async def test_a_stalled_stream_gets_no_more() -> None:
    now = 0.0
    budget = AnswerBudget(unread_seconds=30, clock=lambda: now)
    share, _ = budget.open(), budget.open()
    share.begin_write()
    num_streams, num_stalled = (budget.gauges()[name] for name in ("bulk_streams", "bulk_streams_stalled"))
    assert (num_streams(), num_stalled()) == (2, 0)
    now += STALLED_SECONDS + 0.1
    assert num_stalled() == 1
    await asyncio.wait_for(share.take(1), 1)
    more = await begun(share.take(1))
    assert not more.done(), "nothing is decoded in vain"
    share.end_write()
    share.give_back(1)
    await asyncio.wait_for(more, 1)
    budget.close(share)
    assert (num_streams(), num_stalled()) == (1, 0)
