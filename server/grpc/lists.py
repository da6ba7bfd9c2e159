"""Lists and streams of requests: GenerateMany, GenerateBatch and GenerateBatches.

A list (GenerateMany) is accepted as a whole or not at all. Then each request ends by itself.

A stream (the other two) has any number of requests, each answered on completion, in constant memory. Flow control keeps
memory constant: a message is read when all requests of the one before have been submitted, so gRPC itself holds back a
sender that is too fast, and a receiver that is too slow slows down its sender. The streams share two limits:

* the number of a model's bulk requests (`bulk_permits`), from submission to outcome, since they share the engine;
* memory (`AnswerBudget`), from reading to the written answer, which bounds the unread answers.
"""

import asyncio
import traceback
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from attendant.runtime.errors import Violation
from attendant.server.call import MAX_ID_CHARACTERS, Call, RequestLog, RequestRecord, UndecodableRequest
from attendant.server.catalogue import ServedModel
from attendant.server.engine.client import FairSemaphore
from attendant.server.engine.messages import Outcome, Priority, Result
from attendant.server.errors import AttendantError, Draining, Failed, InvalidArgument, Stalled, Unavailable, error_of
from attendant.server.grpc.requests import (
    TOKEN_BYTES,
    AnswerBudget,
    ParsedRequest,
    check_answer_bytes,
    generate_fields,
    num_cells,
    off_the_loop,
    read_generate,
    status_of,
    submit_all,
    written,
)
from attendant_client.v1 import seq2seq_pb2 as messages

MAX_REQUESTS: Final = 256
"""Limit of a list: a full batch of rows by default, and half of the requests that one client may have waiting."""

ANSWERS_IN_A_ROW: Final = 16
"""Number of answers that are made in one turn of the event loop, so that other calls need not wait for hundreds."""

REFUSAL_BYTES: Final = 4096  # Memory for an answer that is an error, together with the request's record.
MAX_RESULTS: Final = 32
"""Limit of the results in one message of a stream: making them takes a millisecond of the event loop."""

MESSAGE_BYTES: Final = 1 << 20  # Limit of the memory of all results in a message of a stream.

Request = messages.GenerateRequest | UndecodableRequest


@dataclass(slots=True, eq=False)
class Item:
    """One request of several, from its message to its outcome. The message itself is not kept.

    Attributes:
        request_id: in the answer; empty if the request can't be decoded.
        parsed: None until the request has been read, and if it is invalid.
        submitted: None until the engine has the request.
        outcome: None until there is one. An invalid request has its error here; other exceptions are bugs or
            cancellations.
        num_bytes: memory that the stream holds for the answer.
    """

    request_id: str
    record: RequestRecord
    parsed: ParsedRequest | None = None
    submitted: asyncio.Future[Outcome] | None = None
    outcome: Outcome | BaseException | None = None
    num_bytes: int = 0

    @classmethod
    def begin(cls, log: RequestLog, method: str, call: Call, request: Request) -> "Item":
        record = log.begin_listed(method, call, request)
        return cls(request.request_id[:MAX_ID_CHARACTERS], record)

    async def result(self) -> dict[str, Any] | None:
        """Ends the record, and returns a GenerateBatchResponse's fields; None if the end of the call is the answer."""
        raised = self.outcome if isinstance(self.outcome, BaseException) else None
        response = None
        if isinstance(self.outcome, Result):
            assert self.parsed is not None, "a request that was submitted has been read"
            try:
                result = self.parsed.generated(self.outcome, self.record)
                response = await written(num_cells(result), partial(generate_fields, self.parsed, result))
            except Exception as error:
                raised = error
        refusal = self.record.end(raised, "UNAVAILABLE")
        if response is not None:
            return {"request_id": self.request_id, "response": response}
        if refusal is None or isinstance(refusal, Unavailable):
            return None
        return {"request_id": self.request_id, "error": status_of(refusal, self.record.request_id)}


def read_items(items: Iterable[Item], requests: Iterable[Request]) -> None:
    """Reads the requests; the error of an invalid one is its outcome."""
    for item, request in zip(items, requests, strict=True):
        try:
            if isinstance(request, UndecodableRequest):
                raise request.error
            item.parsed = read_generate(request, item.record.lease(request.model, request.version))
        except Exception as error:
            item.outcome = error.with_traceback(None) if isinstance(error, AttendantError) else error


def by_model(items: Iterable[Item]) -> dict[ServedModel, list[Item]]:
    """Groups the items whose requests are valid."""
    groups: dict[ServedModel, list[Item]] = {}
    for item in items:
        if item.parsed is not None:
            groups.setdefault(item.parsed.model, []).append(item)
    return groups


def submit_items(items: Sequence[Item], call: Call, priority: Priority) -> None:
    """Submits valid requests of one model: all of them, or none. See `EngineClient.submit_all`."""
    parsed = [item.parsed for item in items if item.parsed is not None]
    for item, submitted in zip(items, submit_all(parsed, call, priority), strict=True):
        item.submitted = submitted


def requests_of(message: messages.GenerateManyRequest) -> Sequence[messages.GenerateRequest]:
    """Returns the requests of a list. Raises InvalidArgument if there are too few or too many."""
    number = len(message.requests)
    if not 1 <= number <= MAX_REQUESTS:
        raise InvalidArgument(Violation("requests", f"{number} items long", f"1 to {MAX_REQUESTS} items long"))
    return message.requests


async def generate_many(
    message: messages.GenerateManyRequest, call: Call, log: RequestLog
) -> messages.GenerateManyResponse:
    """Answers a list in its order. If the call is cancelled, the rows of all its requests are free within a step.

    Raises:
        Failed: the call fails as a whole, under the id of its first request. InvalidArgument: the list or its answers
            are too long. Overloaded: not all requests can be accepted. Unavailable, InternalError: they concern every
            request.
    """
    try:
        requests = requests_of(message)
    except InvalidArgument:
        with log.begin("GenerateMany", call):
            raise
    items = deque(Item.begin(log, "GenerateMany", call, request) for request in requests)
    call.request_id = items[0].record.request_id
    try:
        await off_the_loop(message.ByteSize(), partial(read_items, items, requests))
        for item in items:
            if isinstance(item.outcome, BaseException) and not isinstance(item.outcome, AttendantError):
                raise item.outcome
        num_bytes = sum(item.parsed.max_answer_bytes for item in items if item.parsed is not None)
        check_answer_bytes(num_bytes, len(items), "requests")
        for group in by_model(items).values():
            submit_items(group, call, Priority.INTERACTIVE)
        results = await _results(items)
        return await written(num_bytes // TOKEN_BYTES, partial(messages.GenerateManyResponse, results=results))
    except BaseException as raised:
        code = call.cancellation_code
        for item in items:
            if item.submitted is not None:
                item.submitted.cancel()
            item.record.end(raised, code)
        if (error := error_of(raised)) is not None:
            raise Failed(error) from None
        raise


async def _results(items: deque[Item]) -> list[dict[str, Any]]:
    """Returns the fields of all results. An item leaves the list when it has ended."""
    results: list[dict[str, Any]] = []
    while items:
        item = items[0]
        if item.submitted is not None:
            item.outcome = await item.submitted
        if isinstance(item.outcome, Unavailable):
            raise item.outcome
        fields = await item.result()
        items.popleft()
        assert fields is not None, "errors that end the call were raised"
        results.append(fields)
        if len(results) % ANSWERS_IN_A_ROW == 0:
            await asyncio.sleep(0)
    return results


class BatchStream:
    """One call of GenerateBatch or GenerateBatches.

    Errors that concern every request (not ready, draining, engine dead) end the stream, after the answers that are
    ready: the caller sends the rest again, to another server. Each other error is the answer to its request, and the
    stream goes on. A client that takes no answer for too long loses the stream, and all memory that it holds.

    Methods are named by how their messages hold requests: GenerateBatch has one request and one result in each message,
    GenerateBatches a list, and all results that are ready.
    """

    def __init__(
        self, method: str, incoming: AsyncIterator[Any], call: Call, log: RequestLog, answer_budget: AnswerBudget
    ) -> None:
        self._method = method
        self._has_lists = method == "GenerateBatches"
        self._incoming = incoming
        self._call = call
        self._log = log
        self._answer_budget = answer_budget
        self._share = answer_budget.open()
        # Items that have a permit, and are submitted together.
        self._ready: list[Item] = []
        self._in: set[Item] = set()
        self._ended: deque[Item] = deque()
        # The error that ends the stream, with the id of the request or call that met it first.
        self._end: tuple[Unavailable, str] | None = None
        self._changed = asyncio.Event()
        self._reading: asyncio.Task[None]

    async def answers(self) -> AsyncGenerator[Any, None]:
        """Reads, decodes and answers until the caller has half-closed and has all answers.

        Raises:
            Failed: an error that concerns every request.
        """
        self._reading = reading = asyncio.create_task(self._read())
        closing = asyncio.create_task(self._log.catalogue.closing.wait())
        for task in (reading, closing):
            task.add_done_callback(self._on_done)
        try:
            while not (reading.done() and not self._in):
                await self._changed.wait()
                self._changed.clear()
                if closing.done() and not reading.done() and self._end is None:
                    # Counted apart from the stream's requests, under the call's id.
                    draining = Draining()
                    self._log.begin(self._method, self._call).end(draining)
                    self._end = draining, self._call.request_id
                if self._end is not None:
                    reading.cancel()
                while self._ended:
                    items: list[Item] = []
                    try:
                        if results := await self._next_results(items):
                            with self._writing(items):
                                if self._has_lists:
                                    yield messages.GenerateManyResponse(results=results)
                                else:
                                    yield messages.GenerateBatchResponse(**results[0])
                    finally:
                        self._free(items)
            if not reading.cancelled():
                reading.result()
            if self._end is not None:
                error, self._call.request_id = self._end
                raise Failed(error)
        finally:
            reading.cancel()
            closing.cancel()
            self._abandon(asyncio.CancelledError())

    def _on_done(self, task: "asyncio.Task[Any]") -> None:
        if not task.cancelled():
            task.exception()  # else asyncio would log that of a stream whose client has gone
        self._changed.set()

    async def _next_results(self, items: list[Item]) -> list[dict[str, Any]]:
        """Moves ended items to `items`, until a message is full; returns the fields of their results.

        The caller frees the items' memory, even if this is cancelled.
        """
        results: list[dict[str, Any]] = []
        num_bytes = 0
        while self._ended and len(items) < (MAX_RESULTS if self._has_lists else 1):
            num_bytes += self._ended[0].num_bytes
            if items and num_bytes > MESSAGE_BYTES:
                break
            item = self._ended.popleft()
            items.append(item)
            fields = await item.result()
            if fields is not None:
                results.append(fields)
            self._in.discard(item)
        return results

    async def _read(self) -> None:
        async for message in self._incoming:
            requests: Sequence[Request] = (message,)
            if self._has_lists and not isinstance(message, UndecodableRequest):
                try:
                    requests = requests_of(message)
                except InvalidArgument as error:
                    requests = (UndecodableRequest(message.ByteSize(), error),)
            await self._take(requests, message.ByteSize())
            if self._end is not None:
                return

    async def _take(self, requests: Sequence[Request], num_bytes: int) -> None:
        """Takes in the requests of a message, each in its turn; those that need not wait are submitted together."""
        items = deque(Item.begin(self._log, self._method, self._call, request) for request in requests)
        self._in.update(items)
        try:
            await off_the_loop(num_bytes, partial(read_items, tuple(items), requests))
            while items:
                await self._make_room(items[0])
                items.popleft()
            self._submit()
        except BaseException as error:
            for item in self._ready:
                _permits_of(item).release()
            for item in (*self._ready, *items):
                self._has_ended(item, error)
            self._ready.clear()
            if not isinstance(error, Exception):
                raise

    async def _make_room(self, item: Item) -> None:
        """Waits for memory and a permit. Before it waits, it submits the items that are ready."""
        num_bytes = REFUSAL_BYTES if item.parsed is None else item.parsed.max_answer_bytes
        if not self._share.has_room(num_bytes):
            self._submit()
        await self._share.take(num_bytes)
        item.num_bytes = num_bytes
        if item.outcome is not None:
            self._has_ended(item, item.outcome)
            return
        permits = _permits_of(item)
        if not permits.is_free:
            self._submit()
        await permits.acquire(self._call.client)
        self._ready.append(item)

    def _submit(self) -> None:
        """Submits the items that are ready, those of each model together."""
        ready, self._ready = self._ready, []
        for group in by_model(ready).values():
            try:
                submit_items(group, self._call, Priority.BULK)
            except Exception as error:
                for item in group:
                    _permits_of(item).release()
                    self._has_ended(item, error)
                continue
            for item in group:
                assert item.submitted is not None
                item.submitted.add_done_callback(partial(self._on_outcome, item))

    def _on_outcome(self, item: Item, submitted: asyncio.Future[Outcome]) -> None:
        _permits_of(item).release()
        if not submitted.cancelled():
            self._has_ended(item, submitted.result())

    def _has_ended(self, item: Item, outcome: Outcome | BaseException) -> None:
        # Frames of a traceback would keep the message. The log of a bug shows the lines without the frames' variables.
        if isinstance(outcome, AttendantError):
            outcome.__traceback__ = None
        elif isinstance(outcome, BaseException):
            traceback.clear_frames(outcome.__traceback__)
        if item not in self._in:  # given up, and counted, before its turn
            return
        item.outcome = outcome
        if isinstance(outcome, Unavailable):
            self._end = self._end or (outcome, item.record.request_id)
        self._ended.append(item)
        self._changed.set()

    @contextmanager
    def _writing(self, items: Sequence[Item]) -> Iterator[None]:
        """Surrounds the writing of a message. It gives the stream up if the client takes too long to read."""
        self._share.begin_write()
        seconds = self._answer_budget.unread_seconds
        unread = asyncio.get_running_loop().call_later(seconds, self._give_up, items)
        try:
            yield
        finally:
            unread.cancel()
            self._share.end_write()

    def _give_up(self, unread: Sequence[Item]) -> None:
        """Frees all that the stream holds. If the client reads on, it gets the error after the message."""
        stalled = Stalled(self._answer_budget.unread_seconds)
        self._reading.cancel()
        self._free(unread)
        self._abandon(stalled)
        self._end = stalled, unread[0].record.request_id

    def _abandon(self, reason: BaseException) -> None:
        """Gives up all requests of the stream, which has ended; their rows are free within a step."""
        code = self._call.cancellation_code
        for item in self._in:
            if item.submitted is not None:
                item.submitted.cancel()
            item.record.end(reason, code)
        self._free(self._in)
        self._in.clear()
        self._ended.clear()
        self._answer_budget.close(self._share)

    def _free(self, items: Iterable[Item]) -> None:
        for item in items:
            self._share.give_back(item.num_bytes)
            item.num_bytes = 0


def _permits_of(item: Item) -> FairSemaphore:
    assert item.parsed is not None
    return item.parsed.model.runner.bulk_permits
