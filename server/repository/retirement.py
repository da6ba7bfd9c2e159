"""Ends the engines of versions that are served no more."""

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Final

from attendant.server.engine.client import EngineClient
from attendant.server.models import ServedModel

HELD_SECONDS: Final = 30.0
"""How often a version that is held for longer is looked for among Python's circles of references."""


class Retirement:
    """The engines that are about to end; iterated over, each of them.

    Who holds a `ServedModel` may still submit requests to it, so its engine ends when nobody holds it any more and the
    last of its requests has been answered.
    """

    def __init__(self) -> None:
        self._ending: dict[EngineClient, asyncio.Task[None]] = {}

    def __iter__(self) -> Iterator[EngineClient]:
        return iter(tuple(self._ending))

    def add(self, model: ServedModel) -> None:
        """Ends a version's engine, some time."""
        loop, unheld = asyncio.get_running_loop(), asyncio.Event()
        weakref.finalize(model, loop.call_soon_threadsafe, unheld.set).atexit = False
        runner, metrics = model.runner, model.metrics

        async def end() -> None:
            while not unheld.is_set():
                try:
                    await asyncio.wait_for(unheld.wait(), HELD_SECONDS)
                except TimeoutError:
                    gc.collect()
            await runner.finished()
            runner.stop()
            metrics.unwatch(runner)
            del self._ending[runner]

        self._ending[runner] = asyncio.create_task(end())
