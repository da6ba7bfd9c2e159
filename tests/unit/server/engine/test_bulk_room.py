"""Places in turn, and memory for answers: who waits, who goes on, and that nothing is lost on the way."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from attendant.server.engine.answer_room import STALLED_SECONDS, AnswerRoom
from attendant.server.engine.bulk_room import BulkRoom


async def begun(waiting: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
    """A task that has come as far as it comes without others."""
    task = asyncio.create_task(waiting)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


async def in_turn(room: BulkRoom, client: str, log: list[str]) -> None:
    await room.acquire(client)
    log.append(client)


async def test_who_is_alone_has_all_places_and_no_more() -> None:
    room = BulkRoom(3)
    for _ in range(3):
        await asyncio.wait_for(room.acquire("a"), 1)
    fourth = await begun(room.acquire("a"))
    assert not fourth.done()
    room.release()
    await asyncio.wait_for(fourth, 1)
    assert room.num_held == 3


async def test_clients_take_turns_however_many_streams_they_have() -> None:
    room = BulkRoom(1)
    await room.acquire("a")
    log: list[str] = []
    tasks = [await begun(in_turn(room, client, log)) for client in "aaaabb"]
    for _ in tasks:
        room.release()
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert log == ["a", "b", "a", "b", "a", "a"]


async def test_who_goes_while_waiting_leaves_nothing_behind() -> None:
    room = BulkRoom(1)
    await room.acquire("a")
    gone, given = await begun(room.acquire("a")), await begun(room.acquire("b"))
    gone.cancel()
    await asyncio.sleep(0)
    room.release()
    # The place has been handed over, and is not taken.
    given.cancel()
    await asyncio.gather(gone, given, return_exceptions=True)
    assert room.num_held == 0
    await asyncio.wait_for(room.acquire("c"), 1)


async def test_each_stream_may_hold_as_much_as_is_left() -> None:
    room = AnswerRoom(unread_seconds=1, max_bytes=120)
    first, second = room.open(), room.open()
    for _ in range(6):
        await asyncio.wait_for(first.take(10), 1)
    assert not (await begun(first.take(10))).done(), "half of it, for a stream alone"
    for _ in range(3):
        await asyncio.wait_for(second.take(10), 1)
    blocked = await begun(second.take(10))
    assert not blocked.done(), "half of the other half"
    second.give_back(10)
    await asyncio.wait_for(blocked, 1)
    assert room.held_bytes == first.held_bytes + second.held_bytes == 90


async def test_who_holds_nothing_never_waits() -> None:
    room = AnswerRoom(unread_seconds=1, max_bytes=100)
    for _ in range(3):
        await asyncio.wait_for(room.open().take(90), 1)


async def test_stalled_are_those_whose_answer_waits() -> None:
    now = 0.0
    room = AnswerRoom(unread_seconds=30, clock=lambda: now)
    one, _ = room.open(), room.open()
    one.writing_since = room.now()
    assert (room.num_streams, room.num_stalled) == (2, 0)
    now += STALLED_SECONDS + 0.1
    assert room.num_stalled == 1
    await asyncio.wait_for(one.take(1), 1)
    more = await begun(one.take(1))
    assert not more.done(), "nothing is decoded in vain"
    one.writing_since = None
    one.give_back(1)
    await asyncio.wait_for(more, 1)
    room.close(one)
    assert (room.num_streams, room.num_stalled) == (1, 0)
