"""Waiting for what tells nobody that it has happened."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

POLL_SECONDS: Final = 0.005


async def until(holds: Callable[[], object], seconds: float) -> None:
    """Waits until something holds, but no longer than so many seconds."""
    give_up = time.monotonic() + seconds
    while not holds() and time.monotonic() < give_up:
        await asyncio.sleep(POLL_SECONDS)
