"""The service attendant.v1.Seq2Seq."""

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
from attendant_client.v1 import seq2seq_pb2 as pb
from attendant_client.v1 import seq2seq_pb2_grpc as pb_grpc

from server.engine.request import Result
from server.errors import (
    AttendantError,
    InternalError,
    InvalidArgument,
    NotBuilt,
    Overloaded,
    Unavailable,
    UnknownModel,
    Violation,
)
from server.metrics import Metrics
from server.model import ServedModel
from server.servicers.conversion import generate_response, model_message, score_response
from server.servicers.status import code_of, trailers_of
from server.servicers.validation import ParsedRequest, parse_generate, parse_score

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(slots=True)
class _Call:
    """What is known of a call while it runs; `model` is empty until it names one that is served."""

    method: str
    request_id: str
    context: Context
    model: str = ""


class Seq2SeqServicer(pb_grpc.Seq2SeqServicer):
    """Reads requests, awaits the engines, writes answers; the methods' documentation is the proto's."""

    def __init__(self, models: Mapping[str, ServedModel], metrics: Metrics) -> None:
        self._models = models
        self._metrics = metrics

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> pb.GenerateResponse:  # noqa: N802
        async with self._call("Generate", request.request_id, context) as call:
            model = self._choose(request.model, call)
            parsed = parse_generate(request, model)
            return generate_response(request, parsed, await self._run(parsed, model, context), model)

    async def GenerateStream(  # noqa: N802
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncIterator[pb.GenerateStreamResponse]:
        async with self._call("GenerateStream", request.request_id, context) as call:
            self._not_built(call)
        yield pb.GenerateStreamResponse()

    async def GenerateBatch(  # noqa: N802
        self, requests: AsyncIterator[pb.GenerateRequest], context: Context
    ) -> AsyncIterator[pb.GenerateBatchResponse]:
        async with self._call("GenerateBatch", "", context) as call:
            self._not_built(call)
        yield pb.GenerateBatchResponse()

    async def Score(self, request: pb.ScoreRequest, context: Context) -> pb.ScoreResponse:  # noqa: N802
        async with self._call("Score", request.request_id, context) as call:
            model = self._choose(request.model, call)
            parsed = parse_score(request, model)
            return score_response(request, parsed, await self._run(parsed, model, context), model)

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:  # noqa: N802
        async with self._call("ListModels", "", context):
            return pb.ListModelsResponse(models=[model_message(model) for model in self._models.values()])

    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.Model:  # noqa: N802
        async with self._call("GetModel", "", context) as call:
            return model_message(self._choose(request.model, call))

    def _choose(self, name: str, call: _Call) -> ServedModel:
        if not name and len(self._models) > 1:
            served = ", ".join(sorted(self._models))
            raise InvalidArgument(Violation("model", f"is empty and several are served; choose from {served}"))
        model = self._models.get(name) if name else next(iter(self._models.values()))
        if model is None:
            raise UnknownModel(name, list(self._models))
        call.model = model.name
        return model

    async def _run(self, parsed: ParsedRequest, model: ServedModel, context: Context) -> Result:
        remaining = context.time_remaining()
        result = await model.runner.run(parsed.source_ids, parsed.search, parsed.max_rows, remaining)
        self._metrics.answer(
            model.name, parsed.source_ids, parsed.num_source_tokens, result.hypotheses[0], result.timings
        )
        return result

    def _not_built(self, call: _Call) -> NoReturn:
        raise NotBuilt(call.method)

    @asynccontextmanager
    async def _call(self, method: str, request_id: str, context: Context) -> AsyncIterator[_Call]:
        """Times a call, and ends it with its status: the only place where an exception becomes one."""
        call = _Call(method, request_id or uuid.uuid4().hex[:16], context)
        began = time.perf_counter()
        code = "OK"
        try:
            yield call
        except AttendantError as error:
            code = error.code
            await self._refuse(call, error)
        except asyncio.CancelledError:
            # Never swallowed: the task belongs to gRPC.
            code = "CANCELLED"
            raise
        except Exception:
            code = InternalError.code
            log.exception("request failed", extra={"request_id": call.request_id, "model": call.model})
            await self._refuse(call, InternalError())
        finally:
            seconds = time.perf_counter() - began
            self._metrics.call(call.model, method, code, seconds)
            log.debug(
                "call",
                extra={"request_id": call.request_id, "model": call.model, "method": method, "code": code}
                | {"seconds": round(seconds, 6)},
            )

    async def _refuse(self, call: _Call, error: AttendantError) -> NoReturn:
        if isinstance(error, Overloaded | Unavailable):
            self._metrics.rejected.labels(call.model, error.reason).inc()
        await call.context.abort(code_of(error), str(error), trailers_of(error))
