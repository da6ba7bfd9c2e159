"""The service attendant.v1.Seq2Seq. What its methods mean is written in the proto."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import Any

import grpc

from attendant.server.catalogue.models import Catalogue
from attendant.server.engine.shares import AnswerBudget
from attendant.server.grpc.batch import ONE, SEVERAL, BatchStream, Packing
from attendant.server.grpc.conversion import generate_response, model_message, num_cells, score_response, written
from attendant.server.grpc.many import answers_to
from attendant.server.grpc.request_context import Answering, RequestContext
from attendant.server.grpc.requests import parse, read_generate, read_score
from attendant.server.grpc.streaming import streamed
from attendant.server.metrics import Metrics
from attendant_client.v1 import seq2seq_pb2 as messages
from attendant_client.v1 import seq2seq_pb2_grpc

SERVICE = messages.DESCRIPTOR.services_by_name["Seq2Seq"]
SERVICE_NAME = SERVICE.full_name
METHODS = tuple(SERVICE.methods_by_name)

Context = grpc.aio.ServicerContext[Any, Any]


class Seq2SeqServicer(seq2seq_pb2_grpc.Seq2SeqServicer):
    """Reads requests, awaits the engines, writes answers.

    Instead of a request, a method may be given an UndecodableRequest.
    """

    def __init__(self, catalogue: Catalogue, metrics: Metrics, answer_budget: AnswerBudget) -> None:
        self._catalogue = catalogue
        self._answer_budget = answer_budget
        self._metrics = metrics

    async def Generate(  # noqa: N802
        self, request: messages.GenerateRequest, context: Context
    ) -> messages.GenerateResponse:
        async with self._answering("Generate", request, context):
            parsed = await parse(read_generate, request, self._catalogue.find(request.model, request.version))
            return await generate_response(parsed, await parsed.submit(context.time_remaining()))

    async def GenerateStream(  # noqa: N802
        self, request: messages.GenerateRequest, context: Context
    ) -> AsyncIterator[messages.GenerateStreamResponse]:
        async with self._answering("GenerateStream", request, context):
            parsed = await parse(read_generate, request, self._catalogue.find(request.model, request.version))
            unread_seconds = self._answer_budget.unread_seconds
            async with aclosing(streamed(parsed, context.time_remaining(), unread_seconds)) as events:
                async for event in events:
                    yield event

    def GenerateBatch(  # noqa: N802
        self, requests: AsyncIterator[messages.GenerateRequest], context: Context
    ) -> AsyncIterator[messages.GenerateBatchResponse]:
        return self._bulk("GenerateBatch", requests, context, ONE)

    def GenerateBatches(  # noqa: N802
        self, requests: AsyncIterator[messages.GenerateManyRequest], context: Context
    ) -> AsyncIterator[messages.GenerateManyResponse]:
        return self._bulk("GenerateBatches", requests, context, SEVERAL)

    async def GenerateMany(  # noqa: N802
        self, request: messages.GenerateManyRequest, context: Context
    ) -> messages.GenerateManyResponse:
        begin = partial(RequestContext, "GenerateMany", self._catalogue, self._metrics)
        return await answers_to(request, self._catalogue, begin, context)

    async def Score(self, request: messages.ScoreRequest, context: Context) -> messages.ScoreResponse:  # noqa: N802
        async with self._answering("Score", request, context):
            parsed = await parse(read_score, request, self._catalogue.find(request.model, request.version))
            result = parsed.result_of_score(await parsed.submit(context.time_remaining()))
            return await written(num_cells(result), partial(score_response, parsed, result))

    async def ListModels(  # noqa: N802
        self, request: messages.ListModelsRequest, context: Context
    ) -> messages.ListModelsResponse:
        async with self._answering("ListModels", request, context):
            return messages.ListModelsResponse(
                models=[
                    model_message(model, routes.role_of(model))
                    for routes in self._catalogue.all()
                    for model in routes.all()
                ]
            )

    async def GetModel(self, request: messages.GetModelRequest, context: Context) -> messages.Model:  # noqa: N802
        async with self._answering("GetModel", request, context):
            routes = self._catalogue.routes(request.model)
            model = routes.find(request.version) if request.version else routes.stable
            return model_message(model, routes.role_of(model))

    def _answering(self, method: str, request: Any, context: Context) -> Answering:
        return Answering(method, self._catalogue, self._metrics, context, request)

    def _bulk(
        self, method: str, asked: AsyncIterator[Any], context: Context, packing: Packing
    ) -> AsyncGenerator[Any, None]:
        begin = partial(RequestContext, method, self._catalogue, self._metrics)
        return BatchStream(asked, context, self._catalogue, begin, self._answer_budget, packing).answers()
