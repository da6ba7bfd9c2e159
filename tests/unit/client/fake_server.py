"""A fake server of the API without a model, for tests of the client."""

import json
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from attendant_client.v1 import seq2seq_pb2 as pb
from attendant_client.v1 import seq2seq_pb2_grpc as stubs


@dataclass
class Failure:
    """An error with which the next call ends."""

    code: grpc.StatusCode
    message: str = "as told"
    details: tuple[Message, ...] = ()
    trailers: tuple[tuple[str, str | bytes], ...] = ()

    def end(self, context: grpc.ServicerContext) -> NoReturn:
        trailers = (("grpc-status-details-bin", self.as_status().SerializeToString()),) if self.details else ()
        context.set_trailing_metadata((*trailers, *self.trailers))
        context.abort(self.code, self.message)
        raise AssertionError("abort raises")

    def as_status(self) -> status_pb2.Status:
        packed = []
        for detail in self.details:
            packed.append(any_pb2.Any())
            packed[-1].Pack(detail)
        return status_pb2.Status(code=self.code.value[0], message=self.message, details=packed)


def violation(field: str, description: str) -> error_details_pb2.BadRequest:
    entry = error_details_pb2.BadRequest.FieldViolation(field=field, description=description)
    return error_details_pb2.BadRequest(field_violations=[entry])


def retry_info(seconds: float) -> error_details_pb2.RetryInfo:
    delay = duration_pb2.Duration()
    delay.FromNanoseconds(int(seconds * 1e9))
    return error_details_pb2.RetryInfo(retry_delay=delay)


class FakeSeq2Seq(stubs.Seq2SeqServicer):
    """Answers a text with its letters in upper case, and records the requests.

    The text "bad" is INVALID_ARGUMENT, "slow" takes 0.2 s, and "slower" 0.8 s.

    Attributes:
        failures: the errors with which the next calls end.
        item_failures: the errors with which the next requests of a stream end.
        break_after: the number of answers after which a stream ends as if the server shut down. If 0, it does not.
        list_sizes: the number of requests in each message of GenerateBatches.
        seconds_left: the time until the deadline, for each call.
        max_in_flight: the largest number of calls that were in progress at once.
    """

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.metadata: list[dict[str, str | bytes]] = []
        self.seconds_left: list[float | None] = []
        self.failures: deque[Failure] = deque()
        self.item_failures: deque[Failure] = deque()
        self.break_after = 0
        self.list_sizes: list[int] = []
        self.max_in_flight = self._in_flight = 0
        self._lock = threading.Lock()

    def Generate(self, request: pb.GenerateRequest, context: grpc.ServicerContext) -> pb.GenerateResponse:  # noqa: N802
        with self._received(request, context):
            if failure := self._failure_of(request):
                failure.end(context)
            return self._generation(request)

    def GenerateStream(  # noqa: N802
        self, request: pb.GenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.GenerateStreamResponse]:
        with self._received(request, context):
            if failure := self._failure_of(request):
                failure.end(context)
            answer = self._generation(request)
            for token in answer.hypotheses[0].tokens:
                yield pb.GenerateStreamResponse(delta={"tokens": [token], "text": token})
            yield pb.GenerateStreamResponse(response=answer)

    def GenerateMany(  # noqa: N802
        self, request: pb.GenerateManyRequest, context: grpc.ServicerContext
    ) -> pb.GenerateManyResponse:
        with self._received(request, context):
            return pb.GenerateManyResponse(results=map(self._result, request.requests))

    def GenerateBatch(  # noqa: N802
        self, requests: Iterator[pb.GenerateRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.GenerateBatchResponse]:
        with self._received(None, context):
            for number, request in enumerate(requests, start=1):
                self.requests.append(request)
                yield self._result(request)
                if number == self.break_after:
                    Failure(grpc.StatusCode.UNAVAILABLE, "shutting down").end(context)

    def GenerateBatches(  # noqa: N802
        self, requests: Iterator[pb.GenerateManyRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.GenerateManyResponse]:
        def each() -> Iterator[pb.GenerateRequest]:
            for message in requests:
                self.list_sizes.append(len(message.requests))
                yield from message.requests

        for result in self.GenerateBatch(each(), context):
            yield pb.GenerateManyResponse(results=[result])

    def _result(self, request: pb.GenerateRequest) -> pb.GenerateBatchResponse:
        failure = self.item_failures.popleft() if self.item_failures else self._failure_of(request)
        if failure:
            return pb.GenerateBatchResponse(request_id=request.request_id, error=failure.as_status())
        return pb.GenerateBatchResponse(request_id=request.request_id, response=self._generation(request))

    @staticmethod
    def _failure_of(request: pb.GenerateRequest) -> Failure | None:
        time.sleep({"slow": 0.2, "slower": 0.8}.get(request.text, 0))
        if request.text != "bad":
            return None
        return Failure(
            grpc.StatusCode.INVALID_ARGUMENT, f"text: {request.text!r} is bad", (violation("text", "is bad"),)
        )

    def _generation(self, request: pb.GenerateRequest) -> pb.GenerateResponse:
        source = list(request.text) if request.WhichOneof("source") == "text" else list(request.tokens.tokens)
        num_hypotheses = request.decoding.num_hypotheses or 1
        return pb.GenerateResponse(
            request_id=request.request_id,
            model=request.model or "fake",
            version="0123456789ab",
            hypotheses=[self._hypothesis(source, rank, request.output) for rank in range(num_hypotheses)],
            source_tokens=source,
            timings=pb.Timings(queue=0.25, encode=0.5, decode=1.0, total=1.75, steps=4, mean_batch_rows=2.5),
        )

    def Score(self, request: pb.ScoreRequest, context: grpc.ServicerContext) -> pb.ScoreResponse:  # noqa: N802
        with self._received(request, context):
            target = request.target_text.split() or list(request.target_tokens.tokens)
            source = list(request.source_text) or list(request.source_tokens.tokens)
            summands = [-0.5] * (len(target) + (not request.HasField("include_eos") or request.include_eos))
            return pb.ScoreResponse(
                request_id=request.request_id,
                model=request.model or "fake",
                version="0123456789ab",
                log_prob=sum(summands),
                source_tokens=source,
                target_tokens=target,
                token_log_probs=summands,
                attention=_diagonal(len(summands), len(source)) if request.output.attention else None,
            )

    def ListModels(self, request: pb.ListModelsRequest, context: grpc.ServicerContext) -> pb.ListModelsResponse:  # noqa: N802
        with self._received(request, context):
            return pb.ListModelsResponse(models=[self._model("fake"), self._model("other")])

    def GetModel(self, request: pb.GetModelRequest, context: grpc.ServicerContext) -> pb.Model:  # noqa: N802
        with self._received(request, context):
            if request.model not in {"", "fake"}:
                Failure(grpc.StatusCode.NOT_FOUND, f"model: {request.model!r} is not served here").end(context)
            return self._model("fake", label=request.version, role=pb.ROLE_NAMED if request.version else 0)

    @contextmanager
    def _received(self, request: Any, context: grpc.ServicerContext) -> Iterator[None]:
        with self._lock:
            if request is not None:
                self.requests.append(request)
            self.metadata.append(dict(context.invocation_metadata()))
            self.seconds_left.append(context.time_remaining())
            failure = self.failures.popleft() if self.failures else None
            self._in_flight += 1
            self.max_in_flight = max(self.max_in_flight, self._in_flight)
        try:
            if failure:
                failure.end(context)
            yield
        finally:
            with self._lock:
                self._in_flight -= 1

    @staticmethod
    def _hypothesis(source: list[str], rank: int, output: pb.OutputOptions) -> pb.Hypothesis:
        tokens = [symbol.upper() for symbol in source] + ["!"] * rank
        return pb.Hypothesis(
            text="".join(tokens),
            tokens=tokens,
            score=-0.5 - rank,
            log_prob=-1.0 - rank,
            token_log_probs=[-0.25] * (len(tokens) + 1) if output.token_log_probs else [],
            attention=_diagonal(len(tokens) + 1, len(source)) if output.attention else None,
            finish_reason=pb.FINISH_REASON_LENGTH if rank else pb.FINISH_REASON_EOS,
        )

    @staticmethod
    def _model(name: str, **more: Any) -> pb.Model:
        return pb.Model(
            name=name,
            version="0123456789ab",
            precision="fp32",
            provider="cpu",
            architecture={"cell": "lstm", "attention": "dot"},
            source_vocabulary_size=32,
            target_vocabulary_size=80,
            limits=pb.Limits(
                max_source_tokens=64,
                max_target_tokens=48,
                max_beam_size=8,
                max_num_hypotheses=4,
                max_source_characters=512,
                max_target_characters=384,
            ),
            defaults=pb.DecodingOptions(beam_size=1, length_penalty=0.5),
            evaluation=[pb.EvaluationResult(metric="wer", value=33.5, protocol="test words", num_examples=12000)],
            manifest_json=json.dumps({"name": name}),
            description="Spells words.",
            examples=[pb.Example(source="ab", target="a b")],
            **more,
        )


def _diagonal(rows: int, columns: int) -> pb.Attention:
    weights = [float(min(row, columns - 1) == column) for row in range(rows) for column in range(columns)]
    return pb.Attention(rows=rows, columns=columns, weights=weights)


@dataclass
class Served:
    """A running fake server, its address and its recorded requests."""

    target: str
    seq2seq: FakeSeq2Seq
    health: health.HealthServicer


@contextmanager
def served(credentials: grpc.ServerCredentials | None = None) -> Iterator[Served]:
    """Runs a fake server on a free port for the duration of the block."""
    seq2seq, healthy = FakeSeq2Seq(), health.HealthServicer()
    healthy.set("", health_pb2.HealthCheckResponse.SERVING)
    server = grpc.server(ThreadPoolExecutor(64))
    stubs.add_Seq2SeqServicer_to_server(seq2seq, server)  # type: ignore[no-untyped-call]
    health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
    # `localhost` has two addresses, and another test's server may have the same port at the other.
    if credentials is None:
        host, port = "127.0.0.1", server.add_insecure_port("127.0.0.1:0")
    else:
        host, port = "localhost", server.add_secure_port("localhost:0", credentials)
    server.start()
    try:
        yield Served(f"{host}:{port}", seq2seq, healthy)
    finally:
        server.stop(None).wait()
