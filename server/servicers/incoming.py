"""Calls as they come in: how much of unfinished requests is held, and for how long; and which calls are under way.

gRPC reads the message of a unary call before it calls the method, waits for it for ever, holds what has arrived of all
such calls without a limit, and logs a traceback for each message that can't be decoded. So every method is registered
as one that reads its requests itself, as bytes. On the wire there is no difference.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc

from attendant.server.errors import TooManyStreams, Undecodable, UnknownMethod, Unread
from attendant.server.observability.metrics import Metrics
from attendant.server.polling import until
from attendant.server.servicers.inference import names as inference
from attendant.server.servicers.request_context import refuse
from attendant.server.servicers.seq2seq import SERVICE_NAME
from attendant.server.servicers.undecodable import UndecodableRequest

log = logging.getLogger(__name__)

SWEEP_SECONDS = 1.0
YOUNG_SECONDS = 0.05
"""A message that is sent with its call is read within so long, also where many calls come at once on a busy machine."""

Context = Any
"""gRPC's servicer context; its type does not say what it can do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of what unfinished requests may hold.

    Attributes:
        max_unread: unary calls whose message has not arrived whole after YOUNG_SECONDS. Each may hold as much as the
            longest message.
        unread_seconds: how long such a message may take.
        max_streams: calls that stream requests or answers. Each may hold as much.
    """

    max_unread: int = 128
    unread_seconds: float = 10.0
    max_streams: int = 128


class Incoming(grpc.aio.ServerInterceptor):
    """Reads the requests of all calls, within bounds. The outermost interceptor."""

    def __init__(self, metrics: Metrics, bounds: Bounds) -> None:
        self._metrics = metrics
        self._bounds = bounds
        # Path -> handler, for the paths that a service has: they are few, and don't change once a server runs. The
        # interceptors inside are asked once for each.
        self._handlers: dict[str, Any] = {}
        # The messages of unary calls, and since when they are waited for, in order of arrival.
        self._unread: dict[asyncio.Future[Any], float] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._num_streams = 0
        self._under_way: set[asyncio.Task[Any]] = set()
        # Its kind is the one that takes calls of every kind.
        self._no_method: Any = grpc.stream_stream_rpc_method_handler(self._refuse_unknown)

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        path = handler_call_details.method
        if path not in self._handlers:
            handler = await continuation(handler_call_details)
            if handler is None:
                return self._no_method
            self._handlers[path] = self._reading(path, handler)
        return self._handlers[path]

    async def answered(self, seconds: float) -> None:
        """Waits until the calls that are under way now have been answered, or so long."""
        calls = set(self._under_way)
        await until(lambda: calls.isdisjoint(self._under_way), seconds)

    async def _refuse_unknown(self, _: Any, context: Context) -> AsyncIterator[bytes]:
        """Refuses a call whose path no service has, whoever makes it."""
        self._begin()
        await refuse(context, "", UnknownMethod(), self._metrics)
        yield b""

    def _reading(self, path: str, handler: Any) -> Any:
        """The same method, which reads its requests itself."""
        decode = Decoder(path, handler.request_deserializer)

        async def answer(_: Any, context: Context) -> Any:
            self._begin()
            return await handler.unary_unary(await self._one(context, decode), context)

        async def answers_to_one(_: Any, context: Context) -> AsyncIterator[Any]:
            self._begin()
            request = await self._one(context, decode)
            async for response in self._streamed(handler.unary_stream, request, context, decode.method):
                yield response

        async def answers_to_many(_: Any, context: Context) -> AsyncIterator[Any]:
            self._begin()
            decoded = self._many(context, decode)
            async for response in self._streamed(handler.stream_stream, decoded, context, decode.method):
                yield response

        if not handler.response_streaming:
            return grpc.stream_unary_rpc_method_handler(answer, response_serializer=handler.response_serializer)
        behaviour = answers_to_many if handler.request_streaming else answers_to_one
        return grpc.stream_stream_rpc_method_handler(behaviour, response_serializer=handler.response_serializer)

    def _begin(self) -> None:
        # Each call has a task. Its context has callbacks too, but then refers to itself, and is not freed when it ends.
        if (task := asyncio.current_task()) is not None:
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def _one(self, context: Context, decode: "Decoder") -> Any:
        """The only request of a call."""
        message = read(context)
        self._unread[message] = time.monotonic()
        if self._sweeper is None or self._has_too_many:
            self._give_up_old()
        try:
            raw = await message
        except Unread as error:
            await refuse(context, decode.method, error, self._metrics)
        finally:
            self._unread.pop(message, None)
        if raw is grpc.aio.EOF:
            await refuse(context, decode.method, Undecodable(0), self._metrics)
        return await self._decoded(raw, context, decode)

    async def _many(self, context: Context, decode: "Decoder") -> AsyncIterator[Any]:
        while (raw := await read(context)) is not grpc.aio.EOF:
            yield await self._decoded(raw, context, decode)

    async def _decoded(self, raw: bytes, context: Context, decode: "Decoder") -> Any:
        request = decode(raw)
        if isinstance(request, UndecodableRequest) and not decode.is_ours:
            await refuse(context, decode.method, request.error, self._metrics)
        return request

    async def _streamed(
        self, behaviour: Callable[[Any, Context], AsyncIterator[Any]], request: Any, context: Context, method: str
    ) -> AsyncIterator[Any]:
        if self._num_streams >= self._bounds.max_streams:
            await refuse(context, method, TooManyStreams(self._bounds.max_streams), self._metrics, request)
        self._num_streams += 1
        try:
            async for response in behaviour(request, context):
                yield response
        finally:
            self._num_streams -= 1

    def _give_up_old(self) -> None:
        """Gives up messages that take too long, the oldest sooner where there are too many; and looks again later."""
        now = time.monotonic()
        while self._unread:
            message, began = next(iter(self._unread.items()))
            if now - began < (YOUNG_SECONDS if self._has_too_many else self._bounds.unread_seconds):
                break
            self._give_up(message)
        if not self._unread:
            return
        loop = asyncio.get_running_loop()
        look_at = loop.time() + (YOUNG_SECONDS if self._has_too_many else SWEEP_SECONDS)
        if self._sweeper is None or self._sweeper.when() > look_at:
            if self._sweeper is not None:
                self._sweeper.cancel()
            self._sweeper = loop.call_at(look_at, self._sweep)

    @property
    def _has_too_many(self) -> bool:
        return len(self._unread) > self._bounds.max_unread

    def _sweep(self) -> None:
        self._sweeper = None
        self._give_up_old()

    def _give_up(self, message: "asyncio.Future[Any]") -> None:
        del self._unread[message]
        if not message.done():
            message.set_exception(Unread())


def read(context: Context) -> "asyncio.Future[Any]":
    """A future of a call's next message, as bytes; `grpc.aio.EOF` where there is none.

    Whoever waits may be cancelled, and gRPC's reading goes on until the call has ended: cancelled itself, it would
    never free what it has allocated (grpc/grpc#43360). A task of its own for it would take four times as long.
    """
    reading = context.read()
    # It waits once: for the future that gRPC's core resolves.
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


class Decoder:
    """Makes requests of bytes.

    Attributes:
        is_ours: the method belongs to a service of ours, which is given what can't be decoded too: to answer and to
            count it like any other request.
        method: its name.
    """

    def __init__(
        self,
        path: str,
        deserialize: Callable[[bytes], Any],
        explain: Callable[[bytes, Exception], UndecodableRequest] = lambda raw, _: UndecodableRequest(
            len(raw), Undecodable(len(raw))
        ),
    ) -> None:
        """`explain`: what stands in the place of a request of which `deserialize` raises that."""
        _, service, self.method = path.split("/")
        self.is_ours = service in (SERVICE_NAME, inference.SERVICE_NAME)
        self._deserialize = deserialize
        self._explain = explain

    def __call__(self, raw: bytes) -> Any:
        try:
            return self._deserialize(raw)
        except Exception as error:  # protobuf has several
            log.warning("undecodable message", extra={"method": self.method, "bytes": len(raw)})
            return self._explain(raw, error)
