"""GenerateBatch: any number of requests on one stream, each answered on completion, in constant memory.

Flow control keeps memory constant. A message is read when the one before it has room among the bulk requests of its
model, and a request keeps its room until its answer has been written: gRPC itself then holds back a sender that is too
fast, and a receiver that is too slow slows down its sender. Streams wait for room in turn, so they share it evenly.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from attendant.server.engine.request import Outcome, Priority, Result
from attendant.server.errors import Draining, Unavailable
from attendant.server.models import Catalogue
from attendant.server.observability.rpc_metrics import cancellation_code
from attendant.server.servicers.clients import client_of
from attendant.server.servicers.conversion import generate_fields
from attendant.server.servicers.request_context import RequestContext
from attendant.server.servicers.requests import ParsedRequest, read_generate
from attendant.server.servicers.status import abort, status_of
from attendant_client.v1 import seq2seq_pb2 as messages


@dataclass(slots=True, eq=False)
class _Item:
    """A request of the stream, and how far it has come.

    Attributes:
        parsed: None until it has been checked.
        submitted: None until the engine has the request.
        outcome: None until there is one. An exception that is none of ours is a fault, or a cancellation.
    """

    request: messages.GenerateRequest
    context: RequestContext
    parsed: ParsedRequest | None = None
    has_room: bool = False
    submitted: asyncio.Future[Outcome] | None = None
    outcome: Outcome | BaseException | None = None

    def give_room_back(self) -> None:
        if self.has_room and self.parsed is not None:
            self.parsed.model.runner.bulk_room.release()


class BatchStream:
    """One call of GenerateBatch.

    What concerns every request alike (not ready, draining, engine dead) ends the stream, after the answers that there
    are: the caller asks for the rest again, elsewhere. All else is told per request, and the stream goes on.
    """

    def __init__(
        self,
        requests: AsyncIterator[messages.GenerateRequest],
        context: Any,
        catalogue: Catalogue,
        begin: Callable[[str, str], RequestContext],
    ) -> None:
        """`begin`: makes the context of a request that has this id and names this model."""
        self._requests = requests
        self._context = context
        self._catalogue = catalogue
        self._begin = begin
        self._in: set[_Item] = set()
        self._ended: deque[_Item] = deque()
        self._ends_with: Unavailable | None = None
        self._changed = asyncio.Event()

    async def answers(self) -> AsyncGenerator[messages.GenerateBatchResponse, None]:
        """Reads, decodes and answers until the caller has half-closed and has all answers.

        Raises:
            grpc.aio.AbortError: the stream ends with what concerns every request.
        """
        reading = asyncio.create_task(self._read())
        closing = asyncio.create_task(self._catalogue.closing.wait())
        for task in (reading, closing):
            task.add_done_callback(lambda _: self._changed.set())
        try:
            while not (reading.done() and not self._in):
                await self._changed.wait()
                self._changed.clear()
                if closing.done() and not reading.done():
                    reading.cancel()
                    self._ends_with = Draining()
                while self._ended:
                    item = self._ended.popleft()
                    answer = self._answer(item)
                    self._in.discard(item)
                    try:
                        if answer is not None:
                            yield answer
                    finally:
                        item.give_room_back()
            if not reading.cancelled():
                reading.result()
            if self._ends_with is not None:
                await abort(self._context, self._ends_with)
        finally:
            reading.cancel()
            closing.cancel()
            self._abandon()

    async def _read(self) -> None:
        async for request in self._requests:
            item = _Item(request, self._begin(request.request_id, request.model))
            self._in.add(item)
            try:
                await self._submit(item)
            except BaseException as error:
                self._end(item, error)
                if not isinstance(error, Exception):
                    raise
            if self._ends_with is not None:
                return

    async def _submit(self, item: _Item) -> None:
        model = self._catalogue.find(item.request.model)
        item.parsed = read_generate(item.request, model)
        await model.runner.bulk_room.acquire()
        item.has_room = True
        item.submitted = item.parsed.submit(self._context.time_remaining(), client_of(self._context), Priority.BULK)
        item.submitted.add_done_callback(partial(self._told, item))

    def _told(self, item: _Item, submitted: asyncio.Future[Outcome]) -> None:
        if not submitted.cancelled():
            self._end(item, submitted.result())

    def _end(self, item: _Item, outcome: Outcome | BaseException) -> None:
        item.outcome = outcome
        if isinstance(outcome, Unavailable):
            self._ends_with = outcome
        self._ended.append(item)
        self._changed.set()

    def _answer(self, item: _Item) -> messages.GenerateBatchResponse | None:
        """What the item is answered; None where the stream's own end answers it. Ends its context."""
        request_id, outcome = item.request.request_id, item.outcome
        answer: messages.GenerateBatchResponse | None = None
        raised = outcome if isinstance(outcome, BaseException) else None
        if isinstance(outcome, Result):
            assert item.parsed is not None
            try:
                fields = generate_fields(item.request, item.parsed, item.parsed.generated(outcome))
                answer = messages.GenerateBatchResponse(request_id=request_id, response=fields)
            except Exception as error:
                raised = error
        told = item.context.end(raised, "UNAVAILABLE")
        if told is None or isinstance(told, Unavailable):
            return answer
        return messages.GenerateBatchResponse(request_id=request_id, error=status_of(told, item.context.made_up_id))

    def _abandon(self) -> None:
        """The stream has ended: whatever is still in is given up, and its rows are free within a step."""
        code = cancellation_code(self._context)
        for item in self._in:
            if item.submitted is not None:
                item.submitted.cancel()
            item.context.end(asyncio.CancelledError(), code)
            item.give_room_back()
        self._in.clear()
