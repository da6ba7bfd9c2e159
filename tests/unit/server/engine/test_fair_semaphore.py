"""Permits in turn: who waits, who goes on, and that no permit is lost on the way."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from attendant.server.engine.shares import FairSemaphore


async def begun(waiting: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
    """A task that has come as far as it comes without others."""
    task = asyncio.create_task(waiting)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


async def in_turn(semaphore: FairSemaphore, client: str, log: list[str]) -> None:
    await semaphore.acquire(client)
    log.append(client)


async def test_who_is_alone_has_all_permits_and_no_more() -> None:
    semaphore = FairSemaphore(3)
    for _ in range(3):
        await asyncio.wait_for(semaphore.acquire("a"), 1)
    fourth = await begun(semaphore.acquire("a"))
    assert not fourth.done()
    semaphore.release()
    await asyncio.wait_for(fourth, 1)
    assert semaphore.num_held == 3


async def test_clients_take_turns_however_many_streams_they_have() -> None:
    semaphore = FairSemaphore(1)
    await semaphore.acquire("a")
    log: list[str] = []
    tasks = [await begun(in_turn(semaphore, client, log)) for client in "aaaabb"]
    for _ in tasks:
        semaphore.release()
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert log == ["a", "b", "a", "b", "a", "a"]


async def test_who_goes_while_waiting_leaves_nothing_behind() -> None:
    semaphore = FairSemaphore(1)
    await semaphore.acquire("a")
    gone, given = await begun(semaphore.acquire("a")), await begun(semaphore.acquire("b"))
    gone.cancel()
    await asyncio.sleep(0)
    semaphore.release()
    # The permit has been handed over, and is not taken.
    given.cancel()
    await asyncio.gather(gone, given, return_exceptions=True)
    assert semaphore.num_held == 0
    await asyncio.wait_for(semaphore.acquire("c"), 1)
