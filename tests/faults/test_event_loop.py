"""Requests that hold up the event loop.

Each kind of message is sent at its maximum size, in the most expensive shapes. The tests measure the processor time
of the loop's thread between two turns of the loop, which other processes don't change.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

import grpc
import pytest
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from attendant.server.auth import Access, Rates
from attendant.server.errors import InvalidArgument
from attendant.server.grpc import requests as reading
from attendant.server.grpc.port import MAX_REQUEST_BYTES
from attendant.server.grpc.requests import LOOP_CELLS, written
from attendant.server.inference import service
from attendant.server.inference.v2 import open_inference_pb2 as inference
from attendant_client.v1 import seq2seq_pb2 as messages
from tests.faults.conftest import Figure
from tests.faults.figures import at_most
from tests.serving import PATIENCE_SECONDS, fake_stepper, served

ROOM = MAX_REQUEST_BYTES - 2048
LONG = "a" * ROOM
MANY = ["a"] * (ROOM // 3)
CODES = {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED", "UNAUTHENTICATED", "PERMISSION_DENIED"}
BOUND = 0.25
"""Maximum processor time of one turn, in seconds, on a slow machine. The attack took 3 to 5.6 s."""


def generate_requests() -> Iterator[messages.GenerateRequest]:
    tokens = messages.Tokens(tokens=MANY)
    yield messages.GenerateRequest(text=LONG)
    yield messages.GenerateRequest(tokens=tokens)
    yield messages.GenerateRequest(text="a", request_id=LONG)
    yield messages.GenerateRequest(text="a", model=LONG)
    yield messages.GenerateRequest(text="a", decoding=messages.DecodingOptions(target_prefix=tokens))


def lists() -> Iterator[messages.GenerateManyRequest]:
    yield messages.GenerateManyRequest(requests=[messages.GenerateRequest()] * (ROOM // 2))
    each = ROOM // 256 - 16
    for request in (messages.GenerateRequest(text="a" * each), messages.GenerateRequest(request_id="\n" * each)):
        yield messages.GenerateManyRequest(requests=[request] * 256)


def tensors() -> Iterator[inference.ModelInferRequest]:
    tensor = inference.ModelInferRequest.InferInputTensor
    yield inference.ModelInferRequest(inputs=[tensor(name="text", datatype="BYTES", shape=[2**63 - 1] * (ROOM // 10))])
    yield inference.ModelInferRequest(inputs=[tensor()] * (ROOM // 2))
    yield inference.ModelInferRequest(outputs=[inference.ModelInferRequest.InferRequestedOutputTensor()] * (ROOM // 2))
    yield inference.ModelInferRequest(raw_input_contents=[b""] * (ROOM // 2))
    named = tensor(name="text", datatype="BYTES", shape=[256])
    yield inference.ModelInferRequest(inputs=[named], raw_input_contents=[bytes(ROOM)])
    named.contents.bytes_contents.extend([b"\xff" * (ROOM // 256 - 8)] * 256)
    yield inference.ModelInferRequest(inputs=[named])
    numbers = {f"{number}": inference.InferParameter(int64_param=1) for number in range(ROOM // 16)}
    yield inference.ModelInferRequest(parameters=numbers)


def requests() -> Iterator[tuple[str, Message]]:
    """Yields the paths of methods, each with a message."""
    ours, theirs = "/attendant.v1.Seq2Seq/", "/inference.GRPCInferenceService/"
    for request in generate_requests():
        for method in ("Generate", "GenerateStream", "GenerateBatch"):
            yield ours + method, request
    for several in lists():
        for method in ("GenerateMany", "GenerateBatches"):
            yield ours + method, several
    yield f"{ours}Score", messages.ScoreRequest(source_text=LONG[::2], target_text=LONG[::2])
    tokens = messages.Tokens(tokens=MANY[::2])
    yield f"{ours}Score", messages.ScoreRequest(source_tokens=tokens, target_tokens=tokens)
    yield f"{ours}GetModel", messages.GetModelRequest(model=LONG)
    for request in tensors():
        yield f"{theirs}ModelInfer", request
    yield f"{theirs}ModelMetadata", inference.ModelMetadataRequest(name=LONG)
    yield f"{theirs}ModelReady", inference.ModelReadyRequest(version=LONG)
    yield f"{theirs}RepositoryIndex", inference.RepositoryIndexRequest(repository_name=LONG)
    yield f"{theirs}RepositoryModelLoad", inference.RepositoryModelLoadRequest(repository_name=LONG)
    yield "/grpc.health.v1.Health/Check", health_pb2.HealthCheckRequest(service=LONG)
    reflection = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    yield reflection, reflection_pb2.ServerReflectionRequest(file_containing_symbol=LONG)


@asynccontextmanager
async def longest_turn() -> AsyncIterator[list[float]]:
    """Yields a list with the longest processor time, in seconds, between two turns of this loop."""
    longest = [0.0]

    async def watch() -> None:
        before = time.thread_time()
        while True:
            await asyncio.sleep(0.001)
            now = time.thread_time()
            longest[0], before = max(longest[0], now - before), now

    watching = asyncio.create_task(watch())
    try:
        yield longest
    finally:
        watching.cancel()


def send(target: str, path: str, request: Message) -> str:
    """Returns the code of a call."""
    with grpc.insecure_channel(target) as channel:
        call = channel.unary_stream(path)(request.SerializeToString(), timeout=PATIENCE_SECONDS)
        with suppress(grpc.RpcError):
            list(call)
        return str(call.code().name)


@pytest.mark.parametrize("is_full", [False, pytest.param(True, marks=pytest.mark.reliability)])
async def test_no_message_blocks_the_event_loop(is_full: bool, figure: Figure) -> None:
    worst = 0.0
    # With rates, the requests of each message are counted before it is read.
    access = Access(rates=Rates(requests_per_second=1e9))
    async with served(fake_stepper(), access=access) as server:
        await asyncio.to_thread(send, server.target, *next(requests()))
        for path, request in requests():
            assert request.ByteSize() <= MAX_REQUEST_BYTES, path
            async with longest_turn() as longest:
                code = await asyncio.to_thread(send, server.target, path, request)
            assert code in CODES
            assert longest[0] < BOUND, (path, str(request)[:80])
            worst = max(worst, longest[0])
    if is_full:
        figure("longest turn of the event loop, by any message of 256 KiB", 1000 * worst, at_most(50), "ms")


async def test_large_answers_are_made_on_another_thread() -> None:
    here = threading.get_ident()
    assert await written(LOOP_CELLS, threading.get_ident) == here
    assert await written(LOOP_CELLS + 1, threading.get_ident) != here


async def test_padding_counts_as_part_of_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that each text of a tensor counts with the size of the largest answer."""
    texts = [b"a b a b a b", *[b"a"] * 7]

    def request(texts: list[bytes]) -> inference.ModelInferRequest:
        tensor = inference.ModelInferRequest.InferInputTensor(name="text", datatype="BYTES", shape=[len(texts)])
        tensor.contents.bytes_contents.extend(texts)
        return inference.ModelInferRequest(inputs=[tensor], outputs=[{"name": "attention"}])

    async with served(fake_stepper()) as server:
        model = server.model
        long_bytes, short_bytes = (service._read(request([text]), model)[1][0].max_answer_bytes for text in texts[:2])
        monkeypatch.setattr(reading, "MAX_ANSWER_BYTES", long_bytes + 7 * short_bytes)
        with pytest.raises(InvalidArgument, match="whose answers may take"):
            service._read(request(texts), model)
        service._read(request(texts[1:]), model)
