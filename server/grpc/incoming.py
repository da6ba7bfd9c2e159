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
from urllib.parse import unquote

import grpc
from grpc_health.v1 import health

from attendant.server.auth import CLIENT, Shares, address_of
from attendant.server.engine.shares import AnswerBudget
from attendant.server.errors import IdleStream, TooManyStreams, TooManyUnread, Undecodable, UnknownMethod, Unread
from attendant.server.grpc import inference_names as inference
from attendant.server.grpc.connections import Connections, hang_up_on
from attendant.server.grpc.request_context import refuse
from attendant.server.grpc.service import SERVICE_NAME
from attendant.server.grpc.undecodable import UndecodableRequest
from attendant.server.metrics import Metrics
from attendant.server.polling import until

log = logging.getLogger(__name__)

LARGE_BYTES = 16_384
"""An answer that is watched until it has been read. Smaller ones fit into what a connection buffers."""

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
        max_watches: calls of the health service that stream, which are counted apart.
        idle_seconds: how long nothing may come on a stream of requests, and nothing be answered there.
    """

    max_unread: int = 128
    unread_seconds: float = 10.0
    max_streams: int = 128
    max_watches: int = 128
    idle_seconds: float = 300.0


class Incoming(grpc.aio.ServerInterceptor):
    """Reads the requests of all calls, within bounds. The outermost interceptor."""

    def __init__(
        self,
        metrics: Metrics,
        bounds: Bounds,
        answer_budget: AnswerBudget,
        connections: Connections,
        client_of: Callable[[Context], str],
    ) -> None:
        """`client_of`: returns the name of a caller, by which streams and unread answers are shared."""
        self._metrics = metrics
        self._bounds = bounds
        self._answer_budget = answer_budget
        self._connections = connections
        self._client_of = client_of
        self._streams, self._watches = Shares(bounds.max_streams), Shares(bounds.max_watches)
        # Path -> handler, for the paths that a service has: they are few, and don't change once a server runs. The
        # interceptors inside are asked once for each.
        self._handlers: dict[str, Any] = {}
        # The messages of unary calls, and since when they are waited for, in order of arrival.
        self._unread: dict[asyncio.Future[Any], float] = {}
        self._sweeper: asyncio.TimerHandle | None = None
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
            request = await self._one(context, decode)
            with self._connections.calling(context.peer()):
                response = await handler.unary_unary(request, context)
            await self._count(response.ByteSize(), context, decode.method)
            return response

        async def answers_to_one(_: Any, context: Context) -> AsyncIterator[Any]:
            self._begin()
            request = await self._one(context, decode)
            async for response in self._streamed(handler.unary_stream, request, context, decode):
                yield response

        async def answers_to_many(_: Any, context: Context) -> AsyncIterator[Any]:
            self._begin()
            activity = Activity(self._bounds.idle_seconds)
            decoded = self._many(context, decode, activity)
            with activity:
                async for response in self._streamed(handler.stream_stream, decoded, context, decode):
                    activity.note()
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

    async def _many(self, context: Context, decode: "Decoder", activity: "Activity") -> AsyncIterator[Any]:
        while True:
            activity.message = read(context)
            try:
                raw = await activity.message
            except IdleStream as error:
                await refuse(context, decode.method, error, self._metrics)
            if raw is grpc.aio.EOF:
                return
            activity.note()
            yield await self._decoded(raw, context, decode)

    async def _decoded(self, raw: bytes, context: Context, decode: "Decoder") -> Any:
        self._metrics.request_bytes.labels("", decode.method).inc(len(raw))
        request = decode(raw)
        if isinstance(request, UndecodableRequest) and not decode.is_ours:
            await refuse(context, decode.method, request.error, self._metrics)
        return request

    async def _streamed(
        self, behaviour: Callable[[Any, Context], AsyncIterator[Any]], request: Any, context: Context, decode: "Decoder"
    ) -> AsyncIterator[Any]:
        shares = self._watches if decode.is_health else self._streams
        client = self._client_of(context)
        if not shares.take(client):
            error = TooManyStreams(shares.num_taken, shares.taken_by(client))
            await refuse(context, decode.method, error, self._metrics, request)
        try:
            with self._connections.calling(context.peer()):
                async for response in behaviour(request, context):
                    yield response
        finally:
            shares.give_back(client)

    async def _count(self, num_bytes: int, context: Context, method: str) -> None:
        """Counts an answer until it has been written: its call's task, which does that, ends then.

        gRPC frees what is not read only with the connection, so one that leaves a large answer unread is closed.
        """
        task = asyncio.current_task()
        assert task is not None, "each call has a task"
        client = CLIENT.get() or address_of(context.peer())
        if not self._answer_budget.hold(client, num_bytes, task):
            await refuse(context, method, TooManyUnread(num_bytes), self._metrics)
        if num_bytes > LARGE_BYTES:
            seconds, peer = self._answer_budget.unread_seconds, unquote(context.peer())
            unread = asyncio.get_running_loop().call_later(seconds, hang_up_on, {peer})
            task.add_done_callback(lambda _: unread.cancel())

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


class Activity:
    """When something has come or gone on a stream of requests; ends its waiting for a message after too long.

    Attributes:
        message: that is waited for.
    """

    def __init__(self, idle_seconds: float) -> None:
        self.message: asyncio.Future[Any] | None = None
        self._idle_seconds = idle_seconds
        self._loop = asyncio.get_running_loop()
        self.note()

    def note(self) -> None:
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
        is_health: it belongs to the health service.
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
        self.is_health = service == health.SERVICE_NAME
        self.is_ours = service in (SERVICE_NAME, inference.SERVICE_NAME)
        self._deserialize = deserialize
        self._explain = explain

    def __call__(self, raw: bytes) -> Any:
        try:
            return self._deserialize(raw)
        except Exception as error:  # protobuf has several
            log.warning("undecodable message", extra={"method": self.method, "bytes": len(raw)})
            return self._explain(raw, error)
