"""The service attendant.v1.Seq2Seq. The proto describes its methods."""

# ruff: noqa: N802  # methods have the proto's names

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import Any, Final

from attendant.runtime.bundle.manifest import TEXT_OPTIONS
from attendant.runtime.decoding.hypothesis import Progress
from attendant.runtime.decoding.options import default_max_length
from attendant.runtime.growing_answer import GrowingAnswer, Piece
from attendant.server.call import Call, RequestLog, RequestRecord
from attendant.server.catalogue import Role, ServedModel
from attendant.server.engine.messages import Outcome, Result
from attendant.server.errors import Stalled
from attendant.server.grpc.lists import BatchStream, generate_many
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


ROLES: Final[dict[Role, messages.Role]] = {
    "stable": messages.ROLE_STABLE,
    "canary": messages.ROLE_CANARY,
    "shadow": messages.ROLE_SHADOW,
    "named": messages.ROLE_NAMED,
}


def model_message(model: ServedModel, role: Role) -> messages.Model:
    """Returns the message about a served model in that role."""
    manifest, limits = model.manifest, model.limits
    return messages.Model(
        name=model.name,
        version=manifest.version,
        precision=model.precision,
        provider=model.provider,
        architecture=dict(_flattened(manifest.model)),
        source_vocabulary_size=manifest.source.vocabulary_size,
        target_vocabulary_size=manifest.target.vocabulary_size,
        limits=messages.Limits(
            **limits.model_dump(),
            max_source_characters=model.bundle.source_tokenizer.max_characters(limits.max_source_tokens),
            max_target_characters=model.bundle.target_tokenizer.max_characters(limits.max_target_tokens),
        ),
        defaults=messages.DecodingOptions(
            **manifest.decoding.model_dump(exclude={"max_length", "max_length_ratio", *TEXT_OPTIONS}),
            **{name: getattr(manifest.decoding, name) for name in TEXT_OPTIONS},
            min_length=0,
            # That of the longest source, if it depends on the source.
            max_length=default_max_length(manifest, limits.max_source_tokens),
            suppress_unk=False,
        ),
        evaluation=[
            messages.EvaluationResult(**evaluation.model_dump(exclude={"precision", "difference"}))
            for evaluation in manifest.evaluation
            # Measurements of other graphs need not hold for these.
            if evaluation.precision == model.precision
        ],
        manifest_json=manifest.to_text(),
        label=model.label,
        role=ROLES[role],
        description=model.bundle.description,
        examples=[messages.Example(source=source, target=target) for source, target in model.bundle.examples()],
    )


def _flattened(section: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Returns nested fields by their dotted names, except those that are None."""
    pairs: list[tuple[str, str]] = []
    for name, value in section.items():
        if isinstance(value, dict):
            pairs += _flattened(value, f"{prefix}{name}.")
        elif value is not None:
            pairs.append((prefix + name, str(value).lower() if isinstance(value, bool) else str(value)))
    return pairs
