"""The service attendant.v1.Seq2Seq. What its methods mean is written in the proto."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing
from functools import partial
from typing import Any

import grpc

from attendant.server.errors import NotBuilt
from attendant.server.models import Catalogue
from attendant.server.observability.metrics import Metrics
from attendant.server.servicers.batch import BatchStream
from attendant.server.servicers.clients import client_of
from attendant.server.servicers.conversion import generate_fields, model_message, score_response
from attendant.server.servicers.request_context import RequestContext, answering
from attendant.server.servicers.requests import read_generate, read_score
from attendant_client.v1 import seq2seq_pb2 as messages
from attendant_client.v1 import seq2seq_pb2_grpc

SERVICE = messages.DESCRIPTOR.services_by_name["Seq2Seq"]
SERVICE_NAME = SERVICE.full_name
METHODS = tuple(SERVICE.methods_by_name)

Context = grpc.aio.ServicerContext[Any, Any]


class Seq2SeqServicer(seq2seq_pb2_grpc.Seq2SeqServicer):
    """Reads requests, awaits the engines, writes answers."""

    def __init__(self, catalogue: Catalogue, metrics: Metrics) -> None:
        self._catalogue = catalogue
        self._begin = {method: partial(RequestContext, method, catalogue, metrics) for method in METHODS}

    async def Generate(  # noqa: N802
        self, request: messages.GenerateRequest, context: Context
    ) -> messages.GenerateResponse:
        async with self._answering("Generate", request.request_id, request.model, context):
            parsed = read_generate(request, self._catalogue.find(request.model))
            result = parsed.generated(await parsed.submit(context.time_remaining(), client_of(context)))
            return messages.GenerateResponse(**generate_fields(request, parsed, result))

    async def GenerateStream(  # noqa: N802
        self, request: messages.GenerateRequest, context: Context
    ) -> AsyncIterator[messages.GenerateStreamResponse]:
        async with self._answering("GenerateStream", request.request_id, request.model, context):
            raise NotBuilt("GenerateStream")
        yield messages.GenerateStreamResponse()  # never reached: it makes this a stream

    async def GenerateBatch(  # noqa: N802
        self, requests: AsyncIterator[messages.GenerateRequest], context: Context
    ) -> AsyncIterator[messages.GenerateBatchResponse]:
        stream = BatchStream(requests, context, self._catalogue, self._begin["GenerateBatch"])
        async with aclosing(stream.answers()) as answers:
            async for answer in answers:
                yield answer

    async def Score(self, request: messages.ScoreRequest, context: Context) -> messages.ScoreResponse:  # noqa: N802
        async with self._answering("Score", request.request_id, request.model, context):
            parsed = read_score(request, self._catalogue.find(request.model))
            result = parsed.scored(await parsed.submit(context.time_remaining(), client_of(context)))
            return score_response(request, parsed, result)

    async def ListModels(  # noqa: N802
        self, request: messages.ListModelsRequest, context: Context
    ) -> messages.ListModelsResponse:
        async with self._answering("ListModels", "", "", context):
            return messages.ListModelsResponse(models=map(model_message, self._catalogue.all()))

    async def GetModel(self, request: messages.GetModelRequest, context: Context) -> messages.Model:  # noqa: N802
        async with self._answering("GetModel", "", request.model, context):
            return model_message(self._catalogue.find(request.model))

    def _answering(
        self, method: str, request_id: str, model: str, context: Context
    ) -> AbstractAsyncContextManager[None]:
        return answering(self._begin[method](request_id, model), context)
