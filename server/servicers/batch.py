"""GenerateBatch: any number of requests on one stream, each answered on completion, in constant memory.

Flow control keeps memory constant. A message is read when the one before it has had its turn, right or wrong: gRPC
itself then holds back a sender that is too fast, and a receiver that is too slow slows down its sender. Two limits are
shared among the streams:

* the number of a model's bulk requests (`bulk_permits`), from the submission to the outcome: they share the engine;
* memory (`AnswerBudget`), from the reading to the written answer: it bounds what clients that do not read can pile up.
"""

import asyncio
import traceback
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from attendant.server.access.clients import CLIENT
from attendant.server.deadlines import cancellation_code
from attendant.server.engine.answer_budget import AnswerBudget
from attendant.server.engine.request import Outcome, Priority
from attendant.server.errors import AttendantError, Draining, Stalled, Unavailable
from attendant.server.models import Catalogue
from attendant.server.servicers.request_context import MAX_ID_CHARACTERS, RequestContext, id_of, identify
from attendant.server.servicers.requests import ParsedRequest, parse, read_generate
from attendant.server.servicers.results import result_fields
from attendant.server.servicers.status import abort
from attendant.server.servicers.undecodable import UndecodableRequest, decoded
from attendant_client.v1 import seq2seq_pb2 as messages

REFUSAL_BYTES = 4096
"""What an answer that is an error takes, with all that is noted of its request."""


@dataclass(slots=True, eq=False)
class _Item:
    """A request of the stream, and how far it has come. The message itself is not kept.

    Attributes:
        request_id: for the answer; empty where the request can't be decoded.
        parsed: None until it has been checked.
        num_bytes: of the memory for answers, that it holds.
        submitted: None until the engine has the request.
        outcome: None until there is one. An exception that is none of ours is a fault, or a cancellation.
    """

    request_id: str
    context: RequestContext
    parsed: ParsedRequest | None = None
    num_bytes: int = 0
    submitted: asyncio.Future[Outcome] | None = None
    outcome: Outcome | BaseException | None = None


class BatchStream:
    """One call of GenerateBatch.

    What concerns every request alike (not ready, draining, engine dead) ends the stream, after the answers that there
    are: the caller asks for the rest again, elsewhere. All else is told per request, and the stream goes on. A client
    that takes no answer for too long loses the stream, and all that it holds.
    """

    def __init__(
        self,
        requests: AsyncIterator[messages.GenerateRequest | UndecodableRequest],
        context: Any,
        catalogue: Catalogue,
        begin: Callable[[str, str], RequestContext],
        answer_budget: AnswerBudget,
    ) -> None:
        """`begin`: makes the context of a request that has this id and names this model."""
        self._requests = requests
        self._context = context
        self._client = CLIENT.get()
        self._catalogue = catalogue
        self._begin = begin
        self._answer_budget = answer_budget
        self._share = answer_budget.open()
        self._in: set[_Item] = set()
        self._ended: deque[_Item] = deque()
        # With the id of the request that met it first, or the call's.
        self._ends_with: tuple[Unavailable, str] | None = None
        self._changed = asyncio.Event()
        self._reading: asyncio.Task[None]
        # Tells the client that the stream has been ended because it does not read.
        self._telling: asyncio.Task[NoReturn] | None = None

    async def answers(self) -> AsyncGenerator[messages.GenerateBatchResponse, None]:
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
                    item = self._ended.popleft()
                    fields = result_fields(item.request_id, item.context, item.parsed, item.outcome)
                    self._in.discard(item)
                    try:
                        if fields is not None:
                            with self._writing(item):
                                yield messages.GenerateBatchResponse(**fields)
                    finally:
                        self._free(item)
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

    async def _read(self) -> None:
        async for request in self._requests:
            context = self._begin(request.request_id, request.model)
            identify(request, context.request_id)
            item = _Item(request.request_id[:MAX_ID_CHARACTERS], context)
            self._in.add(item)
            try:
                await self._submit(item, request)
            except BaseException as error:
                self._end(item, error)
                if not isinstance(error, Exception):
                    raise
            if self._ends_with is not None:
                return

    async def _submit(self, item: _Item, request: messages.GenerateRequest | UndecodableRequest) -> None:
        try:
            message = decoded(request)
            model = self._catalogue.find(message.model, message.version)
            item.parsed = await parse(read_generate, message, model)
        except Exception:
            await self._reserve(item, REFUSAL_BYTES)
            raise
        await self._reserve(item, item.parsed.max_answer_bytes)
        permits = model.runner.bulk_permits
        await permits.acquire(self._client)
        try:
            item.submitted = item.parsed.submit(self._context.time_remaining(), Priority.BULK)
        except BaseException:
            permits.release()
            raise
        item.submitted.add_done_callback(lambda _: permits.release())
        item.submitted.add_done_callback(partial(self._told, item))

    async def _reserve(self, item: _Item, num_bytes: int) -> None:
        await self._share.take(num_bytes)
        item.num_bytes = num_bytes

    def _told(self, item: _Item, submitted: asyncio.Future[Outcome]) -> None:
        if not submitted.cancelled():
            self._end(item, submitted.result())

    def _end(self, item: _Item, outcome: Outcome | BaseException) -> None:
        # The message, which is in the frames of a traceback, is not to be kept. Of a fault the log tells the lines.
        if isinstance(outcome, AttendantError):
            outcome.__traceback__ = None
        elif isinstance(outcome, BaseException):
            traceback.clear_frames(outcome.__traceback__)
        item.outcome = outcome
        if isinstance(outcome, Unavailable):
            self._ends_with = self._ends_with or (outcome, item.context.request_id)
        self._ended.append(item)
        self._changed.set()

    @contextmanager
    def _writing(self, item: _Item) -> Iterator[None]:
        """While an answer is written. It ends the stream if the client takes too long to read."""
        self._share.writing_since = self._answer_budget.now()
        seconds = self._answer_budget.unread_seconds
        unread = asyncio.get_running_loop().call_later(seconds, self._give_up, item)
        try:
            yield
        finally:
            unread.cancel()
            self._share.writing_since = None

    def _give_up(self, unread: _Item) -> None:
        """The client has not taken an answer for too long: what the stream holds is for others.

        The status can't overtake the answer that is not read: the client gets it if it reads on, and may ask again.
        """
        stalled = Stalled(self._answer_budget.unread_seconds)
        self._reading.cancel()
        self._free(unread)
        self._abandon(stalled)
        self._telling = asyncio.create_task(abort(self._context, stalled, unread.context.request_id))
        # Mostly nobody is there any more to be told.
        self._telling.add_done_callback(lambda task: task.cancelled() or task.exception())

    def _abandon(self, why: BaseException) -> None:
        """The stream has ended: whatever is still in is given up, and its rows are free within a step."""
        code = cancellation_code(self._context)
        for item in self._in:
            if item.submitted is not None:
                item.submitted.cancel()
            item.context.end(why, code)
            self._free(item)
        self._in.clear()
        self._ended.clear()
        self._answer_budget.close(self._share)

    def _free(self, item: _Item) -> None:
        self._share.give_back(item.num_bytes)
        item.num_bytes = 0
