"""Memory for answers: which stream waits, which goes on, and that nothing is lost on the way."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from attendant.server.engine.shares import STALLED_SECONDS, AnswerBudget


async def begun(waiting: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
    """A task that has come as far as it comes without others."""
    task = asyncio.create_task(waiting)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


async def test_each_stream_may_hold_as_much_as_is_left() -> None:
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


async def test_who_holds_nothing_never_waits() -> None:
    budget = AnswerBudget(unread_seconds=1, max_bytes=100)
    for _ in range(3):
        await asyncio.wait_for(budget.open().take(90), 1)


async def test_stalled_are_those_whose_answer_waits() -> None:
    now = 0.0
    budget = AnswerBudget(unread_seconds=30, clock=lambda: now)
    one, _ = budget.open(), budget.open()
    one.writing_since = budget.now()
    assert (budget.num_streams, budget.num_stalled) == (2, 0)
    now += STALLED_SECONDS + 0.1
    assert budget.num_stalled == 1
    await asyncio.wait_for(one.take(1), 1)
    more = await begun(one.take(1))
    assert not more.done(), "nothing is decoded in vain"
    one.writing_since = None
    one.give_back(1)
    await asyncio.wait_for(more, 1)
    budget.close(one)
    assert (budget.num_streams, budget.num_stalled) == (1, 0)
