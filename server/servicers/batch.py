"""GenerateBatch: any number of requests on one stream, each answered on completion, in constant memory.

Flow control keeps memory constant. A message is read when the one before it has room among the bulk requests of its
model, and a request keeps its room until its answer has been written: a sender that is too fast, and a receiver that is
too slow, are both held back by gRPC itself. Streams wait for room in turn, so they share it evenly.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from attendant.server.engine.request import Outcome, Result
from attendant.server.errors import Draining, Unavailable
from attendant.server.models import Catalogue, ServedModel
from attendant.server.observability.rpc_metrics import cancellation_code
from attendant.server.servicers.call import Account, Failure
from attendant.server.servicers.conversion import generate_fields
from attendant.server.servicers.requests import ParsedRequest, read_generate
from attendant.server.servicers.status import abort, status_of
from attendant_client.v1 import seq2seq_pb2 as messages


@dataclass(slots=True, eq=False)
class _Item:
    """A request of the stream, and what became of it so far.

    Attributes:
        model, parsed: None until the request has been read.
        key: of the engine's request; None until that has it.
        outcome: None until there is one. An exception that is none of ours is a fault, or a cancellation.
    """

    request: messages.GenerateRequest
    began: float
    model: ServedModel | None = None
    parsed: ParsedRequest | None = None
    has_room: bool = False
    key: int | None = None
    outcome: Outcome | BaseException | None = None


class BatchStream:
    """One call of GenerateBatch.

    What concerns every request alike (not ready, draining, engine dead) ends the stream, after the answers that there
    are: the caller asks the rest again, elsewhere. All else is told per request, and the stream goes on.
    """

    def __init__(
        self, requests: AsyncIterator[messages.GenerateRequest], context: Any, catalogue: Catalogue, account: Account
    ) -> None:
        self._requests = requests
        self._context = context
        self._catalogue = catalogue
        self._account = account
        remaining = context.time_remaining()
        self._deadline = None if remaining is None else time.monotonic() + remaining
        self._in: set[_Item] = set()
        self._ended: deque[_Item] = deque()
        self._ends_with: Unavailable | None = None
        self._stirred = asyncio.Event()

    async def answers(self) -> AsyncGenerator[messages.GenerateBatchResponse, None]:
        """Reads, decodes and answers until the caller has half-closed and has all answers."""
        reading = asyncio.create_task(self._read())
        closing = asyncio.create_task(self._catalogue.closing.wait())
        for task in (reading, closing):
            task.add_done_callback(lambda _: self._stirred.set())
        try:
            while not (reading.done() and not self._in):
                await self._stirred.wait()
                self._stirred.clear()
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
                        _give_room_back(item)
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
            item = _Item(request, time.monotonic())
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
        model = item.model = self._catalogue.find(item.request.model)
        parsed = item.parsed = read_generate(item.request, model)
        await model.runner.bulk_room.acquire()
        item.has_room = True
        item.key = model.runner.submit_bulk(parsed.source_ids, parsed.options, self._deadline, partial(self._end, item))

    def _end(self, item: _Item, outcome: Outcome | BaseException) -> None:
        item.outcome = outcome
        if isinstance(outcome, Unavailable):
            self._ends_with = outcome
        self._ended.append(item)
        self._stirred.set()

    def _answer(self, item: _Item) -> messages.GenerateBatchResponse | None:
        """What the item is answered; None where the stream's own end answers it. Closes its account."""
        request_id = item.request.request_id
        answer: messages.GenerateBatchResponse | None = None
        raised: BaseException | None = None
        if isinstance(item.outcome, Result):
            assert item.model is not None and item.parsed is not None
            model, parsed, result = item.model, item.parsed, item.outcome
            try:
                model.metrics.answered(parsed.source_ids, parsed.num_source_tokens, result.stats)
                model.metrics.generated(parsed.num_source_tokens, result.hypotheses)
                fields = generate_fields(item.request, model, parsed, result)
                answer = messages.GenerateBatchResponse(request_id=request_id, response=fields)
            except Exception as error:
                raised = error
        else:
            raised = item.outcome
        failure = self._close(item, raised, "UNAVAILABLE")
        if failure is not None:
            status = status_of(failure.error, failure.made_up_id)
            answer = messages.GenerateBatchResponse(request_id=request_id, error=status)
        return None if raised is not None and (failure is None or isinstance(failure.error, Unavailable)) else answer

    def _abandon(self) -> None:
        """The stream has ended: whatever is still in is given up, and its rows are free within a step."""
        code = cancellation_code(self._context)
        for item in self._in:
            if item.key is not None and item.model is not None:
                item.model.runner.cancel(item.key)
            self._close(item, asyncio.CancelledError(), code)
            _give_room_back(item)
        self._in.clear()

    def _close(self, item: _Item, raised: BaseException | None, cancelled_as: str) -> Failure | None:
        request = item.request
        return self._account.close(request.request_id, request.model, item.began, raised, cancelled_as)


def _give_room_back(item: _Item) -> None:
    if item.has_room and item.model is not None:
        item.model.runner.bulk_room.release()
