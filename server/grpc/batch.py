"""Bulk streams: any number of requests on one stream, each answered on completion, in constant memory.

Flow control keeps memory constant. A message is read when all requests of the one before it have had their turn, right
or wrong: gRPC itself then holds back a sender that is too fast, and a receiver that is too slow slows down its sender.
Two limits are shared among the streams:

* the number of a model's bulk requests (`bulk_permits`), from the submission to the outcome: they share the engine;
* memory (`AnswerBudget`), from the reading to the written answer: it bounds what clients that do not read can pile up.
"""

import asyncio
import traceback
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from attendant.server.auth import CLIENT
from attendant.server.catalogue.models import Catalogue
from attendant.server.deadlines import cancellation_code
from attendant.server.engine.request import Outcome, Priority
from attendant.server.engine.shares import AnswerBudget, FairSemaphore
from attendant.server.errors import AttendantError, Draining, Stalled, Unavailable
from attendant.server.grpc.many import requests_of
from attendant.server.grpc.request_context import MAX_ID_CHARACTERS, RequestContext, id_of, identify
from attendant.server.grpc.requests import ParsedRequest, of_each_model, off_the_loop, read_generate, submit_all
from attendant.server.grpc.results import result_fields
from attendant.server.grpc.status import abort
from attendant.server.grpc.undecodable import UndecodableRequest, decoded
from attendant_client.v1 import seq2seq_pb2 as messages

REFUSAL_BYTES = 4096
"""What an answer that is an error takes, with all that is noted of its request."""

MAX_RESULTS = 32
"""Of an answer with several: making them takes a millisecond, in which nobody else is answered."""

MESSAGE_BYTES = 1 << 20
"""An answer with several holds no more than may take so much memory."""

Request = messages.GenerateRequest | UndecodableRequest


@dataclass(frozen=True, slots=True)
class Packing:
    """How the messages of a stream hold requests and results.

    Attributes:
        requests_of: what a message asks. Raises AttendantError where it holds no requests.
        message_of: the answer with these results, by their fields.
        max_results: of an answer.
    """

    requests_of: Callable[[Any], Sequence[Request]]
    message_of: Callable[[list[dict[str, Any]]], Any]
    max_results: int


ONE = Packing(lambda message: (message,), lambda results: messages.GenerateBatchResponse(**results[0]), 1)
"""GenerateBatch: a request in each message, a result in each answer."""

SEVERAL = Packing(requests_of, lambda results: messages.GenerateManyResponse(results=results), MAX_RESULTS)
"""GenerateBatches: a list of requests in each message; each answer has all results that there are."""


@dataclass(slots=True, eq=False)
class _Item:
    """A request of the stream, and how far it has come. The message itself is not kept.

    Attributes:
        request_id: for the answer; empty where the request can't be decoded.
        parsed: None until it has been checked.
        num_bytes: of the memory for answers, that it holds.
        submitted: None until the engine has the request.
        outcome: None until there is one. An exception that is none of ours is a fault, or a cancellation. What is wrong
            with a request is its outcome, too.
    """

    request_id: str
    context: RequestContext
    parsed: ParsedRequest | None = None
    num_bytes: int = 0
    submitted: asyncio.Future[Outcome] | None = None
    outcome: Outcome | BaseException | None = None


class BatchStream:
    """One call of GenerateBatch or GenerateBatches.

    What concerns every request alike (not ready, draining, engine dead) ends the stream, after the answers that there
    are: the caller asks for the rest again, elsewhere. All else is told per request, and the stream goes on. A client
    that takes no answer for too long loses the stream, and all that it holds.
    """

    def __init__(
        self,
        asked: AsyncIterator[Any],
        context: Any,
        catalogue: Catalogue,
        begin: Callable[[str, str], RequestContext],
        answer_budget: AnswerBudget,
        packing: Packing,
    ) -> None:
        """A call that begins.

        Args:
            asked: the messages.
            begin: makes the context of a request that has this id and names this model.
        """
        self._asked = asked
        self._context = context
        self._client = CLIENT.get()
        self._catalogue = catalogue
        self._begin = begin
        self._answer_budget = answer_budget
        self._packing = packing
        self._share = answer_budget.open()
        # Those that have a permit, and are to be submitted together.
        self._ready: list[_Item] = []
        self._in: set[_Item] = set()
        self._ended: deque[_Item] = deque()
        # With the id of the request that met it first, or the call's.
        self._ends_with: tuple[Unavailable, str] | None = None
        self._changed = asyncio.Event()
        self._reading: asyncio.Task[None]
        # Tells the client that the stream has been ended because it does not read.
        self._telling: asyncio.Task[NoReturn] | None = None

    async def answers(self) -> AsyncGenerator[Any, None]:
        """Reads, decodes and answers until the caller has half-closed and has all answers.

        Raises:
            grpc.aio.AbortError: the stream ends with what concerns every request.
        """
        self._reading = reading = asyncio.create_task(self._read())
        closing = asyncio.create_task(self._catalogue.closing.wait())
        for task in (reading, closing):
            task.add_done_callback(lambda _: self._changed.set())
        try:
            while not (reading.done() and not self._in):
                await self._changed.wait()
                self._changed.clear()
                if closing.done() and not reading.done():
                    reading.cancel()
                    self._ends_with = self._refused(Draining())
                while self._ended:
                    items, results = await self._next_results()
                    try:
                        if results:
                            with self._writing(items):
                                yield self._packing.message_of(results)
                    finally:
                        self._free(items)
                if self._telling is not None:
                    await self._telling
            if not reading.cancelled():
                reading.result()
            if self._ends_with is not None:
                await abort(self._context, *self._ends_with)
        finally:
            reading.cancel()
            closing.cancel()
            if self._telling is not None:
                self._telling.cancel()
            self._abandon(asyncio.CancelledError())

    def _refused(self, error: Unavailable) -> tuple[Unavailable, str]:
        """What ends the stream beside all of its requests, counted and logged."""
        refused = self._begin(id_of(self._context), "")
        refused.end(error)
        return error, refused.request_id

    async def _next_results(self) -> tuple[list[_Item], list[dict[str, Any]]]:
        """Takes those that have ended, as many as fit into an answer, with the fields of their results."""
        items: list[_Item] = []
        results: list[dict[str, Any]] = []
        num_bytes = 0
        while self._ended and len(items) < self._packing.max_results:
            num_bytes += self._ended[0].num_bytes
            if items and num_bytes > MESSAGE_BYTES:
                break
            item = self._ended.popleft()
            items.append(item)
            fields = await result_fields(item.request_id, item.context, item.parsed, item.outcome)
            if fields is not None:
                results.append(fields)
            self._in.discard(item)
        return items, results

    async def _read(self) -> None:
        async for message in self._asked:
            try:
                requests = self._packing.requests_of(message)
            except AttendantError as error:
                requests = [UndecodableRequest(message.ByteSize(), error)]
            await self._take(requests, message.ByteSize())
            if self._ends_with is not None:
                return

    async def _take(self, requests: Sequence[Request], num_bytes: int) -> None:
        """Takes a message's requests in, each when it has its turn; those that need not wait are submitted together."""
        items = deque(map(self._begun, requests))
        try:
            await off_the_loop(num_bytes, partial(_parse, tuple(items), requests, self._catalogue))
            while items:
                await self._make_room(items[0])
                items.popleft()
            self._submit()
        except BaseException as error:
            for item in self._ready:
                _permits_of(item).release()
            for item in (*self._ready, *items):
                self._end(item, error)
            self._ready.clear()
            if not isinstance(error, Exception):
                raise

    def _begun(self, request: Request) -> _Item:
        context = self._begin(request.request_id, request.model)
        identify(request, context.request_id)
        item = _Item(request.request_id[:MAX_ID_CHARACTERS], context)
        self._in.add(item)
        return item

    async def _make_room(self, item: _Item) -> None:
        """Waits for memory and a permit; submits first what is ready, where it has to wait."""
        num_bytes = REFUSAL_BYTES if item.parsed is None else item.parsed.max_answer_bytes
        if not self._share.has_room(num_bytes):
            self._submit()
        await self._share.take(num_bytes)
        item.num_bytes = num_bytes
        if item.outcome is not None:
            self._end(item, item.outcome)
            return
        permits = _permits_of(item)
        if not permits.is_free:
            self._submit()
        await permits.acquire(self._client)
        self._ready.append(item)

    def _submit(self) -> None:
        """Hands what is ready to the engines, the requests of each model together."""
        ready, self._ready = self._ready, []
        for mine in of_each_model(ready):
            permits = _permits_of(mine[0][0])
            try:
                submitted = submit_all([parsed for _, parsed in mine], self._context.time_remaining(), Priority.BULK)
            except Exception as error:
                for item, _ in mine:
                    permits.release()
                    self._end(item, error)
                continue
            for (item, _), outcome in zip(mine, submitted, strict=True):
                item.submitted = outcome
                outcome.add_done_callback(partial(_release, permits))
                outcome.add_done_callback(partial(self._told, item))

    def _told(self, item: _Item, submitted: asyncio.Future[Outcome]) -> None:
        if not submitted.cancelled():
            self._end(item, submitted.result())

    def _end(self, item: _Item, outcome: Outcome | BaseException) -> None:
        # The message, which is in the frames of a traceback, is not to be kept. Of a fault the log tells the lines.
        if isinstance(outcome, AttendantError):
            outcome.__traceback__ = None
        elif isinstance(outcome, BaseException):
            traceback.clear_frames(outcome.__traceback__)
        if item not in self._in:  # given up, and counted, before its turn came
            return
        item.outcome = outcome
        if isinstance(outcome, Unavailable):
            self._ends_with = self._ends_with or (outcome, item.context.request_id)
        self._ended.append(item)
        self._changed.set()

    @contextmanager
    def _writing(self, items: Sequence[_Item]) -> Iterator[None]:
        """While an answer with these is written. It ends the stream if the client takes too long to read."""
        self._share.writing_since = self._answer_budget.now()
        seconds = self._answer_budget.unread_seconds
        unread = asyncio.get_running_loop().call_later(seconds, self._give_up, items)
        try:
            yield
        finally:
            unread.cancel()
            self._share.writing_since = None

    def _give_up(self, unread: Sequence[_Item]) -> None:
        """The client has not taken an answer for too long: what the stream holds is for others.

        The status can't overtake the answer that is not read: the client gets it if it reads on, and may ask again.
        """
        stalled = Stalled(self._answer_budget.unread_seconds)
        self._reading.cancel()
        self._free(unread)
        self._abandon(stalled)
        self._telling = asyncio.create_task(abort(self._context, stalled, unread[0].context.request_id))
        # Mostly nobody is there any more to be told.
        self._telling.add_done_callback(lambda task: task.cancelled() or task.exception())

    def _abandon(self, why: BaseException) -> None:
        """The stream has ended: whatever is still in is given up, and its rows are free within a step."""
        code = cancellation_code(self._context)
        for item in self._in:
            if item.submitted is not None:
                item.submitted.cancel()
            item.context.end(why, code)
        self._free(self._in)
        self._in.clear()
        self._ended.clear()
        self._answer_budget.close(self._share)

    def _free(self, items: Iterable[_Item]) -> None:
        for item in items:
            self._share.give_back(item.num_bytes)
            item.num_bytes = 0


def _parse(items: Sequence[_Item], requests: Sequence[Request], catalogue: Catalogue) -> None:
    for item, request in zip(items, requests, strict=True):
        try:
            message = decoded(request)
            item.parsed = read_generate(message, catalogue.find(message.model, message.version))
        except Exception as error:
            item.outcome = error


def _permits_of(item: _Item) -> FairSemaphore:
    """Those of its model."""
    assert item.parsed is not None
    return item.parsed.model.runner.bulk_permits


def _release(permits: FairSemaphore, _: object) -> None:
    permits.release()
