"""Tasks that go on by themselves, and polling for conditions that raise no event."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final

log = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.005


def begin(work: Coroutine[Any, Any, None], tasks: "set[asyncio.Task[None]]") -> "asyncio.Task[None]":
    """Begins work; its task is in `tasks` until it ends, because the event loop itself does not keep tasks."""
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


async def until(holds: Callable[[], object], seconds: float) -> None:
    """Waits until `holds` returns true, or the seconds have passed."""
    give_up = time.monotonic() + seconds
    while not holds() and time.monotonic() < give_up:
        await asyncio.sleep(POLL_SECONDS)


@contextmanager
def checking(seconds: float, check: Callable[[], Awaitable[None]]) -> Iterator[None]:
    """Awaits `check` every `seconds`, until the end of the context; also after one has failed."""

    async def repeat() -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await check()
            except Exception:
                log.exception("a check has failed, and the next one follows")

    repeating = asyncio.create_task(repeat())
    try:
        yield
    finally:
        repeating.cancel()
