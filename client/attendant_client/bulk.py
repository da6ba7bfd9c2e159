"""Bulk work: any number of requests over one stream, which gives way to interactive requests on the server."""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Self, TypeVar, Unpack

import grpc

from attendant_client.errors import AttendantError, DeadlineExceeded, Overloaded, Unavailable, error_of, error_of_status
from attendant_client.messages import generate_request, generation_of, shown, sized
from attendant_client.types import Generation, RequestOptions, Source
from attendant_client.v1 import seq2seq_pb2 as pb

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# Results that may wait for a slow one, per call in flight; beyond that, no new call begins.
WINDOW = 4


async def in_order(
    function: Callable[[_Item], Awaitable[_Result]], items: Iterable[_Item] | AsyncIterable[_Item], *, concurrency: int
) -> AsyncGenerator[_Result, None]:
    """Yields `await function(item)` for each item, in the items' order, with at most `concurrency` calls in flight.

    A result is yielded as soon as it and all before it are complete, even while the next item is awaited. Items are
    taken only as fast as the results. The first exception, of a call or of the items, ends the iteration; calls in
    flight are then cancelled, as when the caller closes the iterator.
    """
    if not isinstance(concurrency, int) or concurrency < 1:
        raise ValueError(f"concurrency={shown(concurrency)}: must be a whole number of at least 1")
    in_flight = asyncio.Semaphore(concurrency)
    room = asyncio.Semaphore(WINDOW * concurrency)
    begun: asyncio.Queue[asyncio.Task[_Result] | None] = asyncio.Queue()
    tasks: set[asyncio.Task[_Result]] = set()

    async def call(item: _Item) -> _Result:
        try:
            return await function(item)
        finally:
            in_flight.release()

    async def feed() -> None:
        try:
            async for item in _drawn(items):
                await room.acquire()
                await in_flight.acquire()
                task = asyncio.create_task(call(item))
                tasks.add(task)
                begun.put_nowait(task)
        finally:
            begun.put_nowait(None)

    feeder = asyncio.create_task(feed())
    try:
        while (task := await begun.get()) is not None:
            result = await task
            tasks.remove(task)
            yield result
            room.release()
        await feeder
    finally:
        feeder.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(feeder, *tasks, return_exceptions=True)


async def _drawn(items: Iterable[_Item] | AsyncIterable[_Item]) -> AsyncIterator[_Item]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
        return
    for item in items:
        yield item
        # A plain iterator blocks the event loop: calls make progress between two items.
        await asyncio.sleep(0)


GATHER_SECONDS = 0.002  # Requests that begin within this time after the first one share its message.
STATUS_SECONDS = 0.5  # A refused stream returns its status within this time, if nothing is written to it meanwhile.
MESSAGE_REQUESTS = 64
MESSAGE_BYTES = 64 << 10
"""Upper bounds of a message, except that a single request may have more bytes. A server takes 256 requests and 256
KiB."""

REOPEN_SECONDS = 1.0
"""Pause before a stream is opened again after one that brought no answer; gRPC has tried several times by then."""

Answer = asyncio.Future[Generation]


class Bulk:
    """A stream of requests, each answered on completion. Made by `AttendantClient.bulk`, used with `async with`.

    gRPC's flow control slows the sender down if the server is busy; the callers of `generate` bound the number of
    waiting requests. Requests that wait at the same time share a message. A stream that breaks after an answer is
    opened again, until the timeout has passed without another answer, and unanswered requests are sent again: they have
    no side effects. If there was no answer before, only gRPC itself retries, since the target may be wrong.
    """

    def __init__(self, open_stream: Callable[[], Any], timeout: float | None) -> None:
        """`open_stream` makes a call of GenerateBatches."""
        self._open_stream = open_stream
        self._timeout = timeout
        self._numbers = itertools.count(1)
        # By the request's number, in order.
        self._unanswered: dict[str, tuple[pb.GenerateRequest, Answer]] = {}
        self._unsent: deque[pb.GenerateRequest] = deque()
        self._changed = asyncio.Event()
        self._closing = False
        self._last_progress = time.monotonic()
        # A server has answered since requests failed for lack of one.
        self._was_answered = False
        # Makes the error of the last stream, if it brought no answer.
        self._why: Callable[[], AttendantError] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks.append(asyncio.create_task(self._run()))
        if self._timeout is not None:
            self._tasks.append(asyncio.create_task(self._watch(self._timeout)))
        return self

    async def __aexit__(self, kind: object, exception: BaseException | None, traceback: object) -> None:
        """Half-closes the stream and waits for its end; cancels it after an exception or if answers are missing."""
        running, *others = self._tasks
        if exception is None and not self._unanswered:
            self._closing = True
            self._changed.set()
        else:
            running.cancel()
        for task in others:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def generate(self, source: Source, **options: Unpack[RequestOptions]) -> Generation:
        """Decodes one source; see `AttendantClient.generate`.

        The request's id is its number on the stream.

        Raises:
            RuntimeError: outside `async with`, or the client is closed.
        """
        if not self._tasks or self._tasks[0].done():
            raise RuntimeError("this bulk stream is not open; make one with `async with client.bulk() as bulk`")
        if "timeout" in options:
            raise TypeError("timeout: concerns the whole stream; AttendantClient.bulk takes it")
        number = str(next(self._numbers))
        request = generate_request(source, number, options)
        if request.ByteSize() > MESSAGE_BYTES:  # it goes alone, and the list around it has some bytes too
            sized(pb.GenerateManyRequest(requests=[request]))
        answer: Answer = asyncio.get_running_loop().create_future()
        if not self._unanswered:
            self._last_progress = time.monotonic()
        self._unanswered[number] = request, answer
        self._unsent.append(request)
        self._changed.set()
        try:
            return await answer
        finally:
            # The server still answers a cancelled request; the answer is ignored.
            self._unanswered.pop(number, None)

    async def _run(self) -> None:
        """Answers the requests until the stream is left, or until the client is closed."""
        try:
            await self._run_streams()
        except Exception as error:
            for _, answer in self._unanswered.values():
                if not answer.done():
                    answer.set_exception(error)
        finally:
            for _, answer in self._unanswered.values():
                answer.cancel()

    async def _run_streams(self) -> None:
        """Opens streams, one after the other, while there are requests.

        A single message is written before the first answer: until then gRPC may retry the stream, and loses messages
        that are written while it does so. If a write fails before the server's status is read, grpc reports INTERNAL
        instead of it. The next stream then writes nothing for STATUS_SECONDS, so that no write hides the status.
        """
        careful = False
        while await self._is_wanted():
            self._unsent = deque(request for request, _ in self._unanswered.values())
            stream = self._open_stream()
            go_on = asyncio.Event()
            sending = asyncio.create_task(self._send(stream, go_on, STATUS_SECONDS if careful else GATHER_SECONDS))
            answered = False
            raised: grpc.aio.AioRpcError | None = None
            try:
                while (answer := await stream.read()) is not grpc.aio.EOF:
                    answered = True
                    go_on.set()
                    for result in answer.results:
                        self._answer(result)
            except grpc.aio.AioRpcError as error:
                raised = error
            finally:
                sending.cancel()
                (send_error,) = await asyncio.gather(sending, return_exceptions=True)
                stream.cancel()
            hidden = (
                raised is not None and raised.code() is grpc.StatusCode.INTERNAL and isinstance(send_error, Exception)
            )
            if hidden and not answered and not careful:
                careful = True
                continue
            careful = False
            why = partial(_why_it_ended, raised, hidden)
            if not (self._was_answered and isinstance(why(), Unavailable | Overloaded)):
                self._fail_all(why)
            elif not answered:
                self._why = why
                await asyncio.sleep(REOPEN_SECONDS)

    async def _is_wanted(self) -> bool:
        """Waits for a request; returns False if there will be none."""
        while not self._unanswered and not self._closing:
            await self._wait_for_change()
        return bool(self._unanswered)

    async def _send(self, stream: Any, go_on: asyncio.Event, wait_seconds: float) -> None:
        await asyncio.sleep(wait_seconds)
        while True:
            while self._unsent:
                await stream.write(self._next_message())
                await go_on.wait()
            if self._closing:
                await stream.done_writing()
                return
            await self._wait_for_change()

    def _next_message(self) -> pb.GenerateManyRequest:
        requests, num_bytes = [self._unsent.popleft()], 0
        while self._unsent and len(requests) < MESSAGE_REQUESTS:
            num_bytes += requests[-1].ByteSize()
            if num_bytes + self._unsent[0].ByteSize() > MESSAGE_BYTES:
                break
            requests.append(self._unsent.popleft())
        return pb.GenerateManyRequest(requests=requests)

    async def _wait_for_change(self) -> None:
        """Waits for a new request, or for the end of requests."""
        self._changed.clear()
        await self._changed.wait()

    def _answer(self, answer: pb.GenerateBatchResponse) -> None:
        self._last_progress = time.monotonic()
        self._was_answered, self._why = True, None
        _, waiting = self._unanswered.get(answer.request_id, (None, None))
        if waiting is None or waiting.done():
            return
        result = result_of(answer)
        if isinstance(result, AttendantError):
            waiting.set_exception(result)
        else:
            waiting.set_result(result)

    async def _watch(self, timeout: float) -> None:
        """Fails all requests if there is no answer for `timeout` seconds."""
        while True:
            left = self._last_progress + timeout - time.monotonic()
            if left > 0 or not self._unanswered:
                await asyncio.sleep(left if left > 0 else timeout)
            else:
                message = f"no answer for {timeout:g} s"
                self._fail_all(self._why or partial(DeadlineExceeded, grpc.StatusCode.DEADLINE_EXCEEDED, message))

    def _fail_all(self, make_error: Callable[[], AttendantError]) -> None:
        self._was_answered, self._why = False, None
        for number, (_, answer) in self._unanswered.items():
            if not answer.done():
                error = make_error()
                error.request_id = error.request_id or number
                answer.set_exception(error)
        self._unanswered.clear()
        self._unsent.clear()


def result_of(answer: pb.GenerateBatchResponse) -> Generation | AttendantError:
    return error_of_status(answer.error) if answer.WhichOneof("result") == "error" else generation_of(answer.response)


def _why_it_ended(raised: grpc.aio.AioRpcError | None, hidden: bool) -> AttendantError:
    if raised is None:
        return Unavailable(grpc.StatusCode.UNAVAILABLE, "the server ended the stream")
    if hidden:
        return Unavailable(grpc.StatusCode.UNAVAILABLE, "the stream broke")
    return error_of(raised, "")
