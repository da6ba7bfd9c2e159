"""The service attendant.v1.Seq2Seq. What its methods mean is written in the proto."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc

from attendant.server.engine.request import Result
from attendant.server.errors import NotBuilt
from attendant.server.models import Catalogue, ServedModel
from attendant.server.observability.metrics import Metrics
from attendant.server.servicers.batch import BatchStream
from attendant.server.servicers.call import Account, Answering
from attendant.server.servicers.conversion import generate_response, model_message, score_response
from attendant.server.servicers.requests import ParsedRequest, read_generate, read_score
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
        self._accounts = {method: Account(method, catalogue, metrics) for method in METHODS}

    async def Generate(  # noqa: N802
        self, request: messages.GenerateRequest, context: Context
    ) -> messages.GenerateResponse:
        async with self._answering("Generate", request.request_id, request.model, context):
            model = self._catalogue.find(request.model)
            parsed = read_generate(request, model)
            result = await _run(parsed, model, context)
            model.metrics.generated(parsed.num_source_tokens, result.hypotheses)
            return generate_response(request, model, parsed, result)

    async def GenerateStream(  # noqa: N802
        self, request: messages.GenerateRequest, context: Context
    ) -> AsyncIterator[messages.GenerateStreamResponse]:
        async with self._answering("GenerateStream", request.request_id, request.model, context):
            raise NotBuilt("GenerateStream")
        yield messages.GenerateStreamResponse()  # never reached: it makes this a stream

    async def GenerateBatch(  # noqa: N802
        self, requests: AsyncIterator[messages.GenerateRequest], context: Context
    ) -> AsyncIterator[messages.GenerateBatchResponse]:
        stream = BatchStream(requests, context, self._catalogue, self._accounts["GenerateBatch"])
        async with aclosing(stream.answers()) as answers:
            async for answer in answers:
                yield answer

    async def Score(self, request: messages.ScoreRequest, context: Context) -> messages.ScoreResponse:  # noqa: N802
        async with self._answering("Score", request.request_id, request.model, context):
            model = self._catalogue.find(request.model)
            parsed = read_score(request, model)
            return score_response(request, model, parsed, await _run(parsed, model, context))

    async def ListModels(  # noqa: N802
        self, request: messages.ListModelsRequest, context: Context
    ) -> messages.ListModelsResponse:
        async with self._answering("ListModels", "", "", context):
            return messages.ListModelsResponse(models=map(model_message, self._catalogue.all()))

    async def GetModel(self, request: messages.GetModelRequest, context: Context) -> messages.Model:  # noqa: N802
        async with self._answering("GetModel", "", request.model, context):
            return model_message(self._catalogue.find(request.model))

    def _answering(self, method: str, request_id: str, model: str, context: Context) -> Answering:
        return Answering(self._accounts[method], request_id, model, context)


async def _run(parsed: ParsedRequest, model: ServedModel, context: Context) -> Result:
    result = await model.runner.run(parsed.source_ids, parsed.options, context.time_remaining())
    model.metrics.answered(parsed.source_ids, parsed.num_source_tokens, result.stats)
    return result
