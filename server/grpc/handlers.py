"""gRPC's edge: the handlers of all methods, which read, check, answer and count each call.

A handler does the same for every method: it reads the request within limits, checks credentials and rate, calls the
method, and turns an error into a status.
"""

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Coroutine, Iterable, Iterator
from contextlib import AbstractContextManager, aclosing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NoReturn
from urllib.parse import unquote

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health
from prometheus_client import CollectorRegistry

from attendant.server import errors
from attendant.server.auth import Gate, Shares
from attendant.server.call import Call, Rpc, UndecodableRequest, name_in_certificate
from attendant.server.grpc.requests import AnswerBudget, status_of
from attendant.server.metrics import REQUEST_BUCKETS, Counter, Histogram

log = logging.getLogger(__name__)

DETAILS_KEY: Final = "grpc-status-details-bin"
PUSHBACK_KEY: Final = "grpc-retry-pushback-ms"
REQUEST_ID_KEY: Final = "attendant-request-id"

LARGE_BYTES: Final = 16_384
"""A larger answer is watched until it has been read. Smaller ones fit into a connection's buffers."""

LABELS: Final = ("grpc_type", "grpc_service", "grpc_method")

# (requests are streamed, responses are streamed) -> grpc_type
TYPES: Final = {(False, False): "unary", (False, True): "server_stream", (True, True): "bidi_stream"}

Context = Any
"""gRPC's servicer context, whose type lacks most of its methods."""


class GrpcCall(Call):
    def __init__(self, context: Context) -> None:
        super().__init__(context.peer())
        self.context = context

    def metadata(self) -> Iterable[tuple[str, str | bytes]]:
        return self.context.invocation_metadata() or ()

    def time_remaining(self) -> float | None:
        remaining: float | None = self.context.time_remaining()
        return remaining

    def certificate_name(self) -> str:
        return name_in_certificate(self.context.auth_context())


class GrpcMetrics:
    """The usual `grpc_server_*` metrics, with go-grpc-prometheus's names, for every method of the table."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, namespace="grpc_server", registry=registry)
        histogram = partial(Histogram, namespace="grpc_server", registry=registry)
        self.started = counter("started", "RPCs started.", LABELS)
        self.handled = counter("handled", "RPCs ended.", (*LABELS, "grpc_code"))
        self.received = counter("msg_received", "Messages received.", LABELS)
        self.sent = counter("msg_sent", "Messages sent.", LABELS)
        self.seconds = histogram("handling_seconds", "Duration of RPCs.", LABELS, buckets=REQUEST_BUCKETS)


class RpcMetrics:
    """The metrics of one method, their labels resolved once."""

    def __init__(self, metrics: GrpcMetrics, rpc: Rpc) -> None:
        labels = TYPES[rpc.streams_requests, rpc.streams_responses], rpc.service, rpc.name
        self.started = metrics.started.labels(*labels)
        self.handled = partial(metrics.handled.labels, *labels)
        self.received = metrics.received.labels(*labels)
        self.sent = metrics.sent.labels(*labels)
        self.seconds = metrics.seconds.labels(*labels)


class Handling:
    """Counts and times a call as a context manager."""

    def __init__(self, metrics: RpcMetrics, call: GrpcCall) -> None:
        self._metrics, self._call, self._began = metrics, call, time.monotonic()

    def __enter__(self) -> None:
        self._metrics.started.inc()

    def __exit__(self, kind: object, raised: BaseException | None, traceback: object) -> None:
        self._metrics.handled(self._code(raised)).inc()
        self._metrics.seconds.observe(time.monotonic() - self._began)

    def _code(self, raised: BaseException | None) -> str:
        if isinstance(raised, errors.Failed):
            return raised.error.code
        if isinstance(raised, errors.AttendantError):
            return raised.code
        if isinstance(raised, asyncio.CancelledError | GeneratorExit):
            return self._call.cancellation_code
        # A library's method may have set a code.
        code = self._call.context.code()
        return code.name if code else "OK" if raised is None else "UNKNOWN"


YOUNG_SECONDS: Final = 0.05
"""A message that is sent with its call is read within this time, also if many calls come at once to a busy machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of unfinished requests.

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
                message.set_exception(errors.Unread())
        if self._since and self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(YOUNG_SECONDS, self._sweep)

    @property
    def _has_too_many(self) -> bool:
        return len(self._since) > self._bounds.max_unread

    def _sweep(self) -> None:
        self._sweeper = None
        self._give_up_old()


class ConnectionCalls:
    """The calls of each connection, which is named by its peer, as gRPC names it.

    Attributes:
        num_calls: calls in progress, for each connection that has any.
        used_at: time at which the last call that had an answer ended, also for connections that have ended.
    """

    def __init__(self) -> None:
        self.num_calls: dict[str, int] = {}
        self.used_at: dict[str, float] = {}

    @contextmanager
    def calling(self, peer: str) -> Iterator[None]:
        """Notes a call whose request has been read. Only calls that end with an answer count as a use."""
        peer = unquote(peer)
        self.num_calls[peer] = self.num_calls.get(peer, 0) + 1
        try:
            yield
            self.used_at[peer] = time.monotonic()
        finally:
            self.num_calls[peer] -= 1
            if not self.num_calls[peer]:
                del self.num_calls[peer]

    def keep(self, peers: Collection[str]) -> None:
        """Forgets the uses of all connections except these."""
        self.used_at = {peer: used for peer, used in self.used_at.items() if peer in peers}


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
        self._noted_at = self._loop.time()

    def __enter__(self) -> None:
        self._timer = self._loop.call_later(self._idle_seconds, self._look)

    def __exit__(self, *raised: object) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        end = self._noted_at + self._idle_seconds
        if end <= self._loop.time() and self.message is not None and not self.message.done():
            self.message.set_exception(errors.IdleStream(self._idle_seconds))
            return
        self._timer = self._loop.call_at(max(end, self._loop.time() + self._idle_seconds / 10), self._look)


def read(context: Any) -> "asyncio.Future[Any]":
    """Begins to read a call's next message; returns a future of its bytes, or of `grpc.aio.EOF` after the last one.

    A caller or a limit may cancel the future, but gRPC's coroutine must not be cancelled: grpcio would never free its
    memory (grpc/grpc#43360). So it is run here by hand, and goes on until the call has ended. It waits once, for a
    future that gRPC's core resolves. A task of its own would do the same in four times the time; a coroutine that may
    be cancelled, once that issue is resolved, in none.
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


class Handlers(grpc.GenericRpcHandler):
    """The handlers of all methods of the table.

    gRPC reads the message of a unary call before it calls the method, waits for it indefinitely, holds the unfinished
    messages of all calls without a limit, and logs a traceback for each message that can't be decoded. So every method
    is registered as one that reads its requests itself, as bytes. On the wire there is no difference.

    Attributes:
        connection_calls: the calls that they handle, by connection.
    """

    def __init__(
        self,
        rpcs: Iterable[Rpc],
        gate: Gate,
        *,
        bounds: Bounds,
        answer_budget: AnswerBudget,
        hang_up: Callable[[Collection[str]], object],
    ) -> None:
        """Makes the handlers. `hang_up` ends the connections of these peers."""
        self._gate = gate
        self._log = gate.log
        self._bounds = bounds
        self._unread = UnreadMessages(bounds)
        self._answer_budget = answer_budget
        self._hang_up = hang_up
        self.connection_calls = ConnectionCalls()
        self._streams, self._watches = Shares(bounds.max_streams), Shares(bounds.max_watches)
        self._under_way: set[asyncio.Task[Any]] = set()
        metrics = GrpcMetrics(gate.log.metrics.registry)
        self._by_path = {f"/{rpc.full_name}": self._handler(rpc, RpcMetrics(metrics, rpc)) for rpc in rpcs}
        # Methods that stream both ways take calls of every kind.
        self._unknown: Any = grpc.stream_stream_rpc_method_handler(self._refuse_unknown)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return self._by_path.get(handler_call_details.method, self._unknown)

    async def answered(self, seconds: float) -> None:
        """Waits until the calls that are under way now have been answered, or the seconds have passed."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=seconds)

    def _handler(self, rpc: Rpc, metrics: RpcMetrics) -> Any:
        async def answer(_: Any, context: Context) -> Any:
            call = self._begin(context)
            try:
                request = await self._only_request(rpc, call)
                with self.connection_calls.calling(call.peer), Handling(metrics, call):
                    metrics.received.inc()
                    self._gate.let_in(rpc, request, call)
                    self._log.require_decoded(rpc.name, call, request)
                    response = await rpc.answer(request, call)
                    metrics.sent.inc()
                self._hold(response.ByteSize(), call)
            except (errors.AttendantError, errors.Failed) as error:
                await self._fail(rpc.name, call, error)
            return response

        async def stream(_: Any, context: Context) -> AsyncIterator[Any]:
            call = self._begin(context)
            try:
                async with aclosing(self._responses(rpc, metrics, call)) as responses:
                    async for response in responses:
                        yield response
            except (errors.AttendantError, errors.Failed) as error:
                await self._fail(rpc.name, call, error)

        if rpc.streams_responses:
            return grpc.stream_stream_rpc_method_handler(stream, response_serializer=_serialize)
        return grpc.stream_unary_rpc_method_handler(answer, response_serializer=_serialize)

    async def _refuse_unknown(self, _: Any, context: Context) -> AsyncIterator[bytes]:
        await self._fail("", self._begin(context), errors.UnknownMethod())
        yield b""

    def _begin(self, context: Context) -> GrpcCall:
        # Each call has a task. Its context has callbacks too, but then refers to itself, and is not freed when it ends.
        if (task := asyncio.current_task()) is not None:
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
        return GrpcCall(context)

    async def _only_request(self, rpc: Rpc, call: GrpcCall) -> Any:
        raw = await self._unread.wait_for(read(call.context))
        if raw is grpc.aio.EOF:
            raise errors.Undecodable(0, "the call ended before it had arrived")
        request = self._decoded(rpc, raw)
        call.identify(request)
        return request

    async def _responses(self, rpc: Rpc, metrics: RpcMetrics, call: GrpcCall) -> AsyncGenerator[Any, None]:
        activity = Activity(self._bounds.idle_seconds)
        if rpc.streams_requests:
            request = self._requests(rpc, metrics, call, activity)
        else:
            request = await self._only_request(rpc, call)
        with self._place(rpc, call), self.connection_calls.calling(call.peer), activity, Handling(metrics, call):
            self._gate.let_in(rpc, request, call)
            if not rpc.streams_requests:
                metrics.received.inc()
                self._log.require_decoded(rpc.name, call, request)
            async with aclosing(rpc.answer(request, call)) as responses:
                async for response in responses:
                    metrics.sent.inc()
                    activity.note()
                    yield response

    async def _requests(
        self, rpc: Rpc, metrics: RpcMetrics, call: GrpcCall, activity: Activity
    ) -> AsyncGenerator[Any, None]:
        """Yields the requests of a stream, which are waited for if the client is above its rate."""
        while True:
            activity.message = read(call.context)
            raw = await activity.message
            if raw is grpc.aio.EOF:
                return
            activity.note()
            request = self._decoded(rpc, raw)
            metrics.received.inc()
            self._gate.check_again(rpc, call)
            while (seconds := self._gate.wait_seconds(rpc, request, call)) > 0:
                await asyncio.sleep(seconds)
            yield request

    def _decoded(self, rpc: Rpc, raw: bytes) -> Any:
        self._log.metrics.request_bytes.labels("", rpc.name).inc(len(raw))
        try:
            return rpc.request_class.FromString(raw)
        except Exception:  # protobuf has several classes
            log.warning("undecodable message", extra={"method": rpc.name, "bytes": len(raw)})
            error = errors.Undecodable(len(raw))
        if not rpc.is_counted:
            raise error
        return UndecodableRequest(len(raw), error)

    def _place(self, rpc: Rpc, call: GrpcCall) -> AbstractContextManager[None]:
        """Holds a place for a stream. Raises TooManyStreams."""
        shares = self._watches if rpc.service == health.SERVICE_NAME else self._streams
        return shares.place(self._gate.access.known_client(call), errors.TooManyStreams)

    def _hold(self, num_bytes: int, call: GrpcCall) -> None:
        """Counts an answer until it has been written, when its call's task ends.

        gRPC frees an unread answer only with the connection, so a connection that leaves a large one unread is closed.
        Raises TooManyUnread.
        """
        task = asyncio.current_task()
        assert task is not None, "each call has a task"
        if not self._answer_budget.hold(call.client, num_bytes, task):
            raise errors.TooManyUnread(num_bytes)
        if num_bytes > LARGE_BYTES:
            seconds, peer = self._answer_budget.unread_seconds, unquote(call.peer)
            unread = asyncio.get_running_loop().call_later(seconds, self._hang_up, {peer})
            task.add_done_callback(lambda _: unread.cancel())

    async def _fail(self, method: str, call: GrpcCall, raised: errors.AttendantError | errors.Failed) -> NoReturn:
        """Ends a call with an error. An error that reached no method is counted and logged here.

        Raises:
            grpc.aio.AbortError: gRPC's own.
            asyncio.CancelledError: the caller has gone.
        """
        error = raised.error if isinstance(raised, errors.Failed) else raised
        try:
            await abort(call.context, error, call.request_id)
        except grpc.aio.AbortError:
            if error is raised:
                self._log.refused(method, call, error)
            raise
        except grpc.aio.InternalError:
            raise asyncio.CancelledError from None


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


async def abort(context: Context, error: errors.AttendantError, request_id: str) -> NoReturn:
    """Ends an RPC with the status of an error. Raises grpc.aio.AbortError."""
    try:
        await context.abort(grpc.StatusCode[error.code], str(error), trailing_metadata(error, request_id))
    except grpc.aio.AbortError as aborted:
        if (task := asyncio.current_task()) is not None:
            task.add_done_callback(partial(_forget_frames, aborted, error))
        raise
    raise AssertionError("abort returned")


def trailing_metadata(error: errors.AttendantError, request_id: str) -> tuple[tuple[str, str | bytes], ...]:
    """Returns the metadata that carries an error's details.

    gRPC's own retries don't read RetryInfo but obey the pushback, so both are sent.
    """
    metadata: list[tuple[str, str | bytes]] = [(DETAILS_KEY, status_of(error, request_id).SerializeToString())]
    # A header holds only ASCII; the details hold any id.
    if request_id.isascii() and request_id.isprintable():
        metadata.append((REQUEST_ID_KEY, request_id))
    if isinstance(error, errors.Overloaded):
        metadata.append((PUSHBACK_KEY, str(math.ceil(error.retry_seconds * 1000))))
    return tuple(metadata)


def _forget_frames(aborted: BaseException, error: BaseException, _: object) -> None:
    """Lets a call be freed: gRPC keeps the exception that aborted it, and frames of a traceback keep the call."""
    aborted.__context__ = None
    aborted.__traceback__ = error.__traceback__ = None
