"""Tests that every kind of call answers, refuses and ends a request as Generate does."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf import json_format

from attendant.runtime.bundle.bigrams import SeenBigrams
from attendant_client.v1 import seq2seq_pb2 as messages
from tests.http_serving import Http, http_served
from tests.integration.test_confidence import CALIBRATION, KNOWN
from tests.integration.test_service import long_request
from tests.integration.test_spans import bundle_of, stepper
from tests.serving import Served, eventually, failure, fake_stepper, gated_stepper, served

Generate = messages.GenerateRequest
Many = messages.GenerateManyRequest
Result = messages.GenerateBatchResponse
"""An answer or an error."""

Door = Callable[[Served, Http, Generate], Awaitable[Result]]


async def by_generate(server: Served, web: Http, request: Generate) -> Result:
    return Result(response=await server.stub.Generate(request))


async def by_stream(server: Served, web: Http, request: Generate) -> Result:
    *pieces, last = [event async for event in server.stub.GenerateStream(request)]
    best = last.response.hypotheses[0]
    assert "".join(piece.delta.text for piece in pieces) == best.text
    assert [token for piece in pieces for token in piece.delta.tokens] == list(best.tokens)
    return Result(response=last.response)


async def by_many(server: Served, web: Http, request: Generate) -> Result:
    (result,) = (await server.stub.GenerateMany(Many(requests=[request]))).results
    return result


async def by_batch(server: Served, web: Http, request: Generate) -> Result:
    (result,) = [result async for result in server.stub.GenerateBatch(iter([request]))]
    return result


async def by_batches(server: Served, web: Http, request: Generate) -> Result:
    (answer,) = [answer async for answer in server.stub.GenerateBatches(iter([Many(requests=[request])]))]
    (result,) = answer.results
    return result


async def by_http(server: Served, web: Http, request: Generate) -> Result:
    answer = await web.post("/v1/generate", json_format.MessageToDict(request))
    if answer.status != 200:
        return Result(error={"code": grpc.StatusCode[answer.json["code"]].value[0], "message": answer.json["detail"]})
    return Result(response=json_format.Parse(answer.text, messages.GenerateResponse()))


async def by_http_stream(server: Served, web: Http, request: Generate) -> Result:
    answer = await web.post("/v1/generate?stream=1", json_format.MessageToDict(request))
    if answer.status != 200:
        return await by_http(server, web, request)
    assert answer.headers["content-type"] == "text/event-stream"
    *pieces, (name, last) = answer.events
    assert {kind for kind, _ in pieces} <= {"delta"} and name == "response"
    assert "".join(piece["delta"]["text"] for _, piece in pieces) == last["response"]["hypotheses"][0]["text"]
    return Result(response=json_format.ParseDict(last["response"], messages.GenerateResponse()))


async def by_http_list(server: Served, web: Http, request: Generate) -> Result:
    answer = await web.post("/v1/generate_many", {"requests": [json_format.MessageToDict(request)]})
    if answer.status != 200:
        return await by_http(server, web, request)
    (result,) = json_format.Parse(answer.text, messages.GenerateManyResponse()).results
    return result


DOORS: tuple[Door, ...] = (by_stream, by_many, by_batch, by_batches, by_http, by_http_stream, by_http_list)


async def outcome(door: Door, server: Served, web: Http, request: Generate) -> Any:
    """Returns the answer without times and ids, or the code and the message of the error."""
    try:
        result = await door(server, web, request)
    except grpc.aio.AioRpcError as error:
        return error.code().value[0], error.details()
    if result.HasField("error"):
        return result.error.code, result.error.message
    result.response.ClearField("timings")
    result.response.ClearField("request_id")
    return result.response


ANSWERED = {
    "plain": Generate(text="abc"),
    "a low confidence, and white space": Generate(text="\ufeff\thgfe\u00ad \r\n"),
    "an unknown symbol": Generate(text="ab漢c"),
    "tokens": Generate(tokens={"tokens": ["a", "b"]}),
    "all outputs": Generate(
        text="abca",
        decoding={"beam_size": 4, "num_hypotheses": 3, "length_penalty": 1.5},
        output={"attention": True, "token_log_probs": True, "trace": 4},
    ),
    "draws": Generate(text="abc", decoding={"sampling": {"seed": 3}, "num_hypotheses": 2}),
    "a prefix": Generate(text="abc", decoding={"target_prefix_text": "AD", "beam_size": 2}),
    "parts, with spans": Generate(
        text="abc. De\nfgh %s!\n\nab",
        decoding={"split_sentences": True, "protect_spans": True, "beam_size": 3, "num_hypotheses": 3},
        output={"attention": True},
    ),
}
REFUSED = {
    "wrong options": Generate(text="abc", decoding={"beam_size": 99, "patience": 99}),
    "no tokens": Generate(text="\u00a0"),
    "an unknown model": Generate(text="abc", model="none"),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Served]:
    """Starts a server of a calibrated model whose vocabularies have the stand-ins of spans."""
    bundle = bundle_of()
    seen = SeenBigrams.of_sources(bundle.source_tokenizer.encode_batch(KNOWN))
    manifest = bundle.manifest.model_copy(update={"confidence": CALIBRATION}).signed()
    async with served(stepper(), replace(bundle, manifest=manifest, seen_bigrams=seen), max_rows=64) as started:
        yield started


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.asyncio(loop_scope="module")
async def test_every_call_has_the_outcome_of_generate(server: Served, web: Http, door: Door) -> None:
    for name, request in (ANSWERED | REFUSED).items():
        expected = await outcome(by_generate, server, web, request)
        assert isinstance(expected, messages.GenerateResponse) == (name in ANSWERED)
        assert await outcome(door, server, web, request) == expected, name


async def test_every_call_is_unavailable_before_the_bundles_are_checked() -> None:
    async with served(fake_stepper(), ready=False) as server, http_served(server) as web:
        for door in (by_generate, *DOORS):
            code, _ = await outcome(door, server, web, Generate(text="abc"))
            assert code == grpc.StatusCode.UNAVAILABLE.value[0], door
        for call in (
            server.stub.Score(messages.ScoreRequest(source_text="a", target_text="B")),
            server.stub.GetModel(messages.GetModelRequest()),
            server.stub.ListModels(messages.ListModelsRequest()),
        ):
            assert (await failure(call)).code() is grpc.StatusCode.UNAVAILABLE


LONG, IN_PARTS = long_request(beam_size=2), long_request(text="ab\ncd")
IN_PARTS.decoding.split_sentences = True


async def begin(server: Served, web: Http, method: str, path: str, request: Any, timeout: float | None) -> Any:
    """Begins a call, over HTTP if there is a path; returns a function that ends it as a caller does that goes away."""
    if not path:
        sent = iter(request.requests) if method == "GenerateBatch" else request
        return getattr(server.stub, method)(sent, timeout=timeout).cancel
    body = json.dumps(json_format.MessageToDict(request))
    _, writer = await asyncio.open_connection("127.0.0.1", web.port)
    deadline = "" if timeout is None else f"Request-Timeout: {timeout}\r\n"
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{deadline}"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    return writer.close


@pytest.mark.parametrize(
    ("method", "path", "request_message", "num_requests", "num_rows"),
    [
        ("Generate", "", LONG, 1, 2),
        ("Generate", "", IN_PARTS, 1, 2),
        ("Generate", "/v1/generate", LONG, 1, 2),
        ("GenerateStream", "", LONG, 1, 2),
        ("GenerateStream", "/v1/generate?stream=1", LONG, 1, 2),
        ("GenerateMany", "", Many(requests=[LONG] * 4), 4, 8),
        ("GenerateBatch", "", Many(requests=[LONG]), 1, 2),
    ],
)
@pytest.mark.parametrize("code", ["CANCELLED", "DEADLINE_EXCEEDED"])
async def test_rows_are_free_within_a_step_of_the_end_of_their_call(
    method: str, path: str, request_message: Any, num_requests: int, num_rows: int, code: str
) -> None:
    stepper = gated_stepper()
    async with served(stepper) as server, http_served(server) as web:
        timeout = 1.0 if code == "DEADLINE_EXCEEDED" else None
        leave = await begin(server, web, method, path, request_message, timeout)
        await stepper.arrival()
        if code == "CANCELLED":
            leave()
        labels = {"model": "fake", "method": method, "code": code}
        await eventually(lambda: server.sample("attendant_requests_total", **labels) == num_requests)
        stepper.let_one_pass()
        await eventually(lambda: server.sample("attendant_cancelled_rows_total", model="fake") == num_rows)
        assert stepper.num_steps == 1
        for gauge in ("requests_running", "requests_waiting", "rows_running", "bulk_requests"):
            assert server.sample(f"attendant_{gauge}", model="fake") == 0
        leave()
