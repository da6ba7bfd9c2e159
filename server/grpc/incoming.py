"""Reading of messages: limits of what unfinished ones may hold, and a way around grpc/grpc#43360 (see `read`)."""

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from attendant.server.errors import IdleStream, Unread

SWEEP_SECONDS: Final = 1.0
YOUNG_SECONDS: Final = 0.05
"""A message that is sent with its call is read within this time, also if many calls come at once to a busy machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of what unfinished requests may hold.

    Attributes:
        max_unread: unary calls whose message has not arrived whole after YOUNG_SECONDS. Each may hold as much as the
            longest message.
        unread_seconds: limit of the time that such a message may take.
        max_streams: calls that stream requests or answers. Each may hold as much.
        max_watches: calls of the health service that stream, which are counted apart.
        idle_seconds: a stream of requests ends if nothing comes or goes for this long.
    """

    max_unread: int = 128
    unread_seconds: float = 10.0
    max_streams: int = 128
    max_watches: int = 128
    idle_seconds: float = 300.0


class UnreadMessages:
    """The messages of unary calls that have not arrived whole. Those that take too long are given up."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        # Message -> the time since when it is awaited, in order of arrival.
        self._since: dict[asyncio.Future[Any], float] = {}
        self._sweeper: asyncio.TimerHandle | None = None

    async def wait_for(self, message: "asyncio.Future[Any]") -> Any:
        """Returns the message. Raises Unread if it takes too long."""
        self._since[message] = time.monotonic()
        if self._sweeper is None or self._has_too_many:
            self._give_up_old()
        try:
            return await message
        finally:
            self._since.pop(message, None)

    def _give_up_old(self) -> None:
        """Gives up messages that take too long, the oldest sooner if there are too many; and looks again later."""
        now = time.monotonic()
        while self._since:
            message, began = next(iter(self._since.items()))
            if now - began < (YOUNG_SECONDS if self._has_too_many else self._bounds.unread_seconds):
                break
            del self._since[message]
            if not message.done():
                message.set_exception(Unread())
        if not self._since:
            return
        loop = asyncio.get_running_loop()
        look_at = loop.time() + (YOUNG_SECONDS if self._has_too_many else SWEEP_SECONDS)
        if self._sweeper is None or self._sweeper.when() > look_at:
            if self._sweeper is not None:
                self._sweeper.cancel()
            self._sweeper = loop.call_at(look_at, self._sweep)

    @property
    def _has_too_many(self) -> bool:
        return len(self._since) > self._bounds.max_unread

    def _sweep(self) -> None:
        self._sweeper = None
        self._give_up_old()


class Activity:
    """The last time that something came or went on a stream. Ends the waiting for a message after too long.

    Attributes:
        message: the awaited message; None if the stream awaits none.
    """

    def __init__(self, idle_seconds: float) -> None:
        self.message: asyncio.Future[Any] | None = None
        self._idle_seconds = idle_seconds
        self._loop = asyncio.get_running_loop()
        self.note()

    def note(self) -> None:
        """Notes that a message came or went."""
        self._noted_at = self._loop.time()

    def __enter__(self) -> None:
        self._timer = self._loop.call_later(self._idle_seconds, self._look)

    def __exit__(self, *raised: object) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        end = self._noted_at + self._idle_seconds
        if end <= self._loop.time() and self.message is not None and not self.message.done():
            self.message.set_exception(IdleStream(self._idle_seconds))
            return
        self._timer = self._loop.call_at(max(end, self._loop.time() + self._idle_seconds / 10), self._look)


def read(context: Any) -> "asyncio.Future[Any]":
    """Begins to read a call's next message; returns a future of its bytes, or of `grpc.aio.EOF` after the last one.

    A caller or a limit may cancel the future, but gRPC's coroutine must not be cancelled: grpcio would never free what
    it has allocated (grpc/grpc#43360). So it is run here by hand, and goes on until the call has ended. It waits once,
    for a future that gRPC's core resolves. A task of its own would do the same in four times the time; a coroutine that
    may be cancelled, once that issue is resolved, in none.
    """
    reading = context.read()
    arrived = reading.send(None)
    message: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    arrived.add_done_callback(partial(_finish, reading, message))
    return message


def _finish(reading: Coroutine[Any, Any, Any], message: "asyncio.Future[Any]", _: Any) -> None:
    try:
        reading.send(None)
    except StopIteration as done:
        if not message.done():
            message.set_result(done.value)
    except Exception as raised:
        if not message.done():
            message.set_exception(raised)
