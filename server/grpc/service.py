"""The service attendant.v1.Seq2Seq. The proto describes its methods."""

# ruff: noqa: N802  # methods have the proto's names

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import Any, Final

from attendant.runtime.decoding.hypothesis import Progress
from attendant.runtime.growing_answer import GrowingAnswer, Piece
from attendant.server.call import Call, RequestLog, RequestRecord
from attendant.server.engine.messages import Outcome, Result
from attendant.server.errors import Stalled
from attendant.server.grpc.lists import BatchStream, generate_many
from attendant.server.grpc.model_facts import model_message
from attendant.server.grpc.requests import (
    AnswerBudget,
    ParsedRequest,
    generate_fields,
    joined_outcome,
    num_cells,
    parse,
    read_generate,
    read_score,
    score_response,
    written,
)
from attendant_client.v1 import seq2seq_pb2 as messages

SERVICE: Final = messages.DESCRIPTOR.services_by_name["Seq2Seq"]
SERVICE_NAME: Final = SERVICE.full_name
METHODS: Final = tuple(SERVICE.methods_by_name)

PAUSE_SECONDS: Final = 1 / 30
"""Pause between two messages of a stream. A message costs as much as a decoder step of several rows, and no one reads
faster."""


class Seq2SeqServicer:
    """Reads requests, awaits the engines, and makes responses. gRPC, HTTP and Ray call these methods.

    Errors leave a method as `Failed`, after the request has been counted and logged.
    """

    def __init__(self, log: RequestLog, answer_budget: AnswerBudget) -> None:
        self._answer_budget = answer_budget
        self._log = log

    async def Generate(self, request: messages.GenerateRequest, call: Call) -> messages.GenerateResponse:
        with self._log.begin("Generate", call, request) as record:
            parsed = await parse(read_generate, request, record.lease(request.model, request.version))
            result = parsed.generated(await parsed.submit(call), record)
            return await written(
                num_cells(result), lambda: messages.GenerateResponse(**generate_fields(parsed, result))
            )

    async def GenerateStream(
        self, request: messages.GenerateRequest, call: Call
    ) -> AsyncIterator[messages.GenerateStreamResponse]:
        with self._log.begin("GenerateStream", call, request) as record:
            parsed = await parse(read_generate, request, record.lease(request.model, request.version))
            events = streamed(parsed, call, record, self._answer_budget.unread_seconds)
            async with aclosing(events):
                async for event in events:
                    yield event

    def GenerateBatch(self, requests: AsyncIterator[Any], call: Call) -> AsyncIterator[Any]:
        return BatchStream("GenerateBatch", requests, call, self._log, self._answer_budget).answers()

    def GenerateBatches(self, requests: AsyncIterator[Any], call: Call) -> AsyncIterator[Any]:
        return BatchStream("GenerateBatches", requests, call, self._log, self._answer_budget).answers()

    async def GenerateMany(self, request: messages.GenerateManyRequest, call: Call) -> messages.GenerateManyResponse:
        return await generate_many(request, call, self._log)

    async def Score(self, request: messages.ScoreRequest, call: Call) -> messages.ScoreResponse:
        with self._log.begin("Score", call, request) as record:
            parsed = await parse(read_score, request, record.lease(request.model, request.version))
            result = parsed.scored(await parsed.submit(call), record)
            return await written(num_cells(result), partial(score_response, parsed, result))

    async def ListModels(self, request: messages.ListModelsRequest, call: Call) -> messages.ListModelsResponse:
        with self._log.begin("ListModels", call, request):
            models = [
                model_message(model, routes.role_of(model))
                for routes in self._log.catalogue.all()
                for model in routes.all()
            ]
            return messages.ListModelsResponse(models=models)

    async def GetModel(self, request: messages.GetModelRequest, call: Call) -> messages.Model:
        with self._log.begin("GetModel", call, request):
            routes = self._log.catalogue.routes(request.model)
            model = routes.find(request.version)
            return model_message(model, routes.role_of(model))


async def streamed(
    parsed: ParsedRequest, call: Call, record: RequestRecord, unread_seconds: float
) -> AsyncGenerator[messages.GenerateStreamResponse, None]:
    """Yields tokens of the best hypothesis as soon as they are certain, and then the whole response.

    Tokens that have come since the last message share the next one, so a slow reader gets fewer and larger messages.
    Closing the generator frees the request's rows within a step.

    Args:
        unread_seconds: a client that takes longer to read a message loses its rows.

    Raises:
        AttendantError: the request's outcome, if it is not an answer, or Stalled.
    """
    growing = GrowingAnswer(parsed.content, parsed.model.bundle.target_tokenizer)
    has_news = asyncio.Event()

    def listen(place: int, progress: Progress) -> None:
        growing.add(place, progress)
        has_news.set()

    def end(place: int, part: asyncio.Future[Outcome]) -> None:
        if not part.cancelled() and isinstance(result := part.result(), Result):
            growing.end(place, result.hypotheses[0])
        has_news.set()

    listeners = [partial(listen, place) for place in range(len(parsed.content.units))]
    parts = parsed.submit_units(call.client, call.time_remaining(), listeners)
    for place, part in enumerate(parts):
        part.add_done_callback(partial(end, place))
    submitted = joined_outcome(parsed.content, parts)
    submitted.add_done_callback(lambda _: has_news.set())
    loop = asyncio.get_running_loop()
    try:
        while not submitted.done():
            await has_news.wait()
            has_news.clear()
            if not submitted.done() and (piece := growing.grow()) is not None:
                unread = loop.call_later(unread_seconds, submitted.cancel)
                try:
                    yield _delta(piece)
                finally:
                    unread.cancel()
                await asyncio.wait([submitted], timeout=PAUSE_SECONDS)
        if submitted.cancelled():
            raise Stalled(unread_seconds)
        result = parsed.generated(submitted.result(), record)
        for place, part in enumerate(parts):
            end(place, part)  # Its callback may not have been called yet.
        fields = await written(num_cells(result), partial(generate_fields, parsed, result))
        if (piece := growing.grow()) is not None:
            yield _delta(piece)
        yield messages.GenerateStreamResponse(response=fields)
    finally:
        submitted.cancel()


def _delta(piece: Piece) -> messages.GenerateStreamResponse:
    return messages.GenerateStreamResponse(delta={"tokens": piece.tokens, "text": piece.text})
