"""gRPC's edge: the handlers of all methods, which read, check, answer and count each call.

A handler does the same for every method: it reads the request within limits, checks credentials and rate, calls the
method, and turns an error into a status.
"""

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from functools import lru_cache, partial
from inspect import iscoroutinefunction
from typing import Any, Final, NoReturn
from urllib.parse import unquote

import grpc
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health
from prometheus_client import CollectorRegistry

from attendant.server.auth import Shares
from attendant.server.call import Call, UndecodableRequest
from attendant.server.config import Openness
from attendant.server.engine.shares import AnswerBudget
from attendant.server.errors import (
    AttendantError,
    Failed,
    Overloaded,
    TooManyStreams,
    TooManyUnread,
    Undecodable,
    UnknownMethod,
)
from attendant.server.grpc.connections import Connections, hang_up_on
from attendant.server.grpc.conversion import status_of
from attendant.server.grpc.gate import Gate, GrpcCall, Rpc, guard_of
from attendant.server.grpc.incoming import Activity, Bounds, UnreadMessages, read
from attendant.server.grpc.request_log import RequestLog
from attendant.server.metrics import REQUEST_BUCKETS, Counter, Histogram
from attendant.server.polling import until

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


def library_rpcs(service: Any, methods: Mapping[str, Callable[[Any, Context], Any]], openness: Openness) -> list[Rpc]:
    """Makes the table of a library's service, whose methods take gRPC's context.

    Args:
        service: its descriptor.
        openness: of `--health` or `--reflection`.
    """
    described = service.methods_by_name
    return [
        Rpc(
            service=service.full_name,
            name=name,
            request_class=GetMessageClass(described[name].input_type),
            streams_requests=described[name].client_streaming,
            streams_responses=described[name].server_streaming,
            answer=_with_context(method, streams=described[name].server_streaming),
            guard=guard_of(openness),
            is_counted=False,
        )
        for name, method in methods.items()
    ]


def _with_context(method: Callable[[Any, Context], Any], *, streams: bool) -> Callable[[Any, "GrpcCall"], Any]:
    def answer(request: Any, call: GrpcCall) -> Any:
        return method(request, call.context)

    async def stream(request: Any, call: GrpcCall) -> AsyncIterator[Any]:
        await method(request, call.context)
        return
        yield  # the method has written its responses to the context itself

    return stream if streams and iscoroutinefunction(method) else answer


class GrpcMetrics:
    """The usual `grpc_server_*` metrics, with go-grpc-prometheus's names, for every method of the table."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, namespace="grpc_server", registry=registry)
        self.started = counter("started", "RPCs started.", LABELS)
        self.handled = counter("handled", "RPCs ended.", (*LABELS, "grpc_code"))
        self.received = counter("msg_received", "Messages received.", LABELS)
        self.sent = counter("msg_sent", "Messages sent.", LABELS)
        self.seconds = Histogram(
            "handling_seconds",
            "Duration of RPCs.",
            LABELS,
            namespace="grpc_server",
            registry=registry,
            buckets=REQUEST_BUCKETS,
        )

    def of(self, rpc: Rpc) -> "RpcMetrics":
        """Returns the metrics of a method."""
        return RpcMetrics(self, (TYPES[rpc.streams_requests, rpc.streams_responses], rpc.service, rpc.name))


class RpcMetrics:
    """The metrics of one method. Labels are resolved once, since that takes a microsecond each."""

    def __init__(self, metrics: GrpcMetrics, labels: tuple[str, str, str]) -> None:
        self.started = metrics.started.labels(*labels)
        self.handled = lru_cache(maxsize=None)(partial(metrics.handled.labels, *labels))
        self.received = metrics.received.labels(*labels)
        self.sent = metrics.sent.labels(*labels)
        self.seconds = metrics.seconds.labels(*labels)

    def handling(self, call: GrpcCall) -> "_Handling":
        """Counts and times a call as a context manager."""
        return _Handling(self, call)


class _Handling:
    __slots__ = ("_began", "_call", "_metrics")

    def __init__(self, metrics: RpcMetrics, call: GrpcCall) -> None:
        self._metrics, self._call, self._began = metrics, call, time.monotonic()

    def __enter__(self) -> None:
        self._metrics.started.inc()

    def __exit__(self, kind: object, raised: BaseException | None, traceback: object) -> None:
        self._metrics.handled(self._code(raised)).inc()
        self._metrics.seconds.observe(time.monotonic() - self._began)

    def _code(self, raised: BaseException | None) -> str:
        if isinstance(raised, Failed):
            return raised.error.code
        if isinstance(raised, AttendantError):
            return raised.code
        if isinstance(raised, asyncio.CancelledError | GeneratorExit):
            return self._call.cancellation_code
        # A library's method may have set a code.
        code = self._call.context.code()
        return code.name if code else "OK" if raised is None else "UNKNOWN"


class Handlers(grpc.GenericRpcHandler):
    """The handlers of all methods of the table.

    gRPC reads the message of a unary call before it calls the method, waits for it indefinitely, holds the unfinished
    messages of all calls without a limit, and logs a traceback for each message that can't be decoded. So every method
    is registered as one that reads its requests itself, as bytes. On the wire there is no difference.
    """

    def __init__(
        self,
        rpcs: Iterable[Rpc],
        gate: Gate,
        log: RequestLog,
        *,
        known_client: Callable[[Call], str],
        bounds: Bounds,
        answer_budget: AnswerBudget,
        connections: Connections,
    ) -> None:
        """Makes the handlers.

        Args:
            known_client: returns the client by which streams and unread answers are shared.
        """
        self._gate = gate
        self._log = log
        self._known_client = known_client
        self._bounds = bounds
        self._unread = UnreadMessages(bounds)
        self._answer_budget = answer_budget
        self._connections = connections
        self._streams, self._watches = Shares(bounds.max_streams), Shares(bounds.max_watches)
        self._under_way: set[asyncio.Task[Any]] = set()
        metrics = GrpcMetrics(log.metrics.registry)
        self._by_path = {f"/{rpc.full_name}": self._handler(rpc, metrics.of(rpc)) for rpc in rpcs}
        # Methods that stream both ways take calls of every kind.
        self._unknown: Any = grpc.stream_stream_rpc_method_handler(self._refuse_unknown)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Returns the handler of a call's path."""
        return self._by_path.get(handler_call_details.method, self._unknown)

    async def answered(self, seconds: float) -> None:
        """Waits until the calls that are under way now have been answered, or the seconds have passed."""
        calls = set(self._under_way)
        await until(lambda: calls.isdisjoint(self._under_way), seconds)

    def _handler(self, rpc: Rpc, metrics: RpcMetrics) -> Any:
        async def answer(_: Any, context: Context) -> Any:
            call = self._begin(context)
            try:
                request = await self._only_request(rpc, call)
                with self._connections.calling(call.peer), metrics.handling(call):
                    metrics.received.inc()
                    self._gate.let_in(rpc, request, call)
                    self._log.require_decoded(rpc.name, call, request)
                    response = await rpc.answer(request, call)
                    metrics.sent.inc()
                self._hold(response.ByteSize(), call)
            except (AttendantError, Failed) as error:
                await self._fail(rpc.name, call, error)
            return response

        async def stream(_: Any, context: Context) -> AsyncIterator[Any]:
            call = self._begin(context)
            try:
                async with aclosing(self._responses(rpc, metrics, call)) as responses:
                    async for response in responses:
                        yield response
            except (AttendantError, Failed) as error:
                await self._fail(rpc.name, call, error)

        if rpc.streams_responses:
            return grpc.stream_stream_rpc_method_handler(stream, response_serializer=_serialize)
        return grpc.stream_unary_rpc_method_handler(answer, response_serializer=_serialize)

    async def _refuse_unknown(self, _: Any, context: Context) -> AsyncIterator[bytes]:
        await self._fail("", self._begin(context), UnknownMethod())
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
            raise Undecodable(0)
        request = self._decoded(rpc, raw)
        call.identify(request)
        return request

    async def _responses(self, rpc: Rpc, metrics: RpcMetrics, call: GrpcCall) -> AsyncGenerator[Any, None]:
        activity = Activity(self._bounds.idle_seconds)
        if rpc.streams_requests:
            request = self._requests(rpc, metrics, call, activity)
        else:
            request = await self._only_request(rpc, call)
        with self._place(rpc, call), self._connections.calling(call.peer), activity, metrics.handling(call):
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
            error = Undecodable(len(raw))
        if not rpc.is_counted:
            raise error
        return UndecodableRequest(len(raw), error)

    @contextmanager
    def _place(self, rpc: Rpc, call: GrpcCall) -> Iterator[None]:
        """Holds a place for a stream. Raises TooManyStreams."""
        shares = self._watches if rpc.service == health.SERVICE_NAME else self._streams
        client = self._known_client(call)
        if not shares.take(client):
            raise TooManyStreams(shares.num_taken, shares.taken_by(client))
        try:
            yield
        finally:
            shares.give_back(client)

    def _hold(self, num_bytes: int, call: GrpcCall) -> None:
        """Counts an answer until it has been written, when its call's task ends.

        gRPC frees an unread answer only with the connection, so a connection that leaves a large one unread is closed.

        Raises:
            TooManyUnread
        """
        task = asyncio.current_task()
        assert task is not None, "each call has a task"
        if not self._answer_budget.hold(call.client, num_bytes, task):
            raise TooManyUnread(num_bytes)
        if num_bytes > LARGE_BYTES:
            seconds, peer = self._answer_budget.unread_seconds, unquote(call.peer)
            unread = asyncio.get_running_loop().call_later(seconds, hang_up_on, {peer})
            task.add_done_callback(lambda _: unread.cancel())

    async def _fail(self, method: str, call: GrpcCall, raised: AttendantError | Failed) -> NoReturn:
        """Ends a call with an error. An error that reached no method is counted and logged here.

        Raises:
            grpc.aio.AbortError: gRPC's own.
            asyncio.CancelledError: the caller has gone.
        """
        error = raised.error if isinstance(raised, Failed) else raised
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


async def abort(context: Context, error: AttendantError, request_id: str) -> NoReturn:
    """Ends an RPC with the status of an error. Raises grpc.aio.AbortError."""
    try:
        await context.abort(grpc.StatusCode[error.code], str(error), trailing_metadata(error, request_id))
    except grpc.aio.AbortError as aborted:
        if (task := asyncio.current_task()) is not None:
            task.add_done_callback(partial(_forget_frames, aborted, error))
        raise
    raise AssertionError("abort returned")


def trailing_metadata(error: AttendantError, request_id: str) -> tuple[tuple[str, str | bytes], ...]:
    """Returns the metadata that carries an error's details.

    gRPC's own retries don't read RetryInfo but obey the pushback, so both are sent.
    """
    metadata: list[tuple[str, str | bytes]] = [(DETAILS_KEY, status_of(error, request_id).SerializeToString())]
    # A header holds only ASCII; the details hold any id.
    if request_id.isascii() and request_id.isprintable():
        metadata.append((REQUEST_ID_KEY, request_id))
    if isinstance(error, Overloaded):
        metadata.append((PUSHBACK_KEY, str(math.ceil(error.retry_seconds * 1000))))
    return tuple(metadata)


def _forget_frames(aborted: BaseException, error: BaseException, _: object) -> None:
    """Lets a call be freed: gRPC keeps the exception that aborted it, and frames of a traceback keep the call."""
    aborted.__context__ = None
    aborted.__traceback__ = error.__traceback__ = None
