"""Tests of traces and masks on the real server: every API returns those of the library.

tests/unit/runtime compares the library's with the naive search.
"""

import asyncio
from pathlib import Path

import grpc
import pytest
from google.protobuf import json_format

import attendant
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.decoding.trace import max_trace_bytes
from attendant_client import AttendantClient, GenerateOptions, InvalidArgument, Sampling
from attendant_client.messages import trace_of
from attendant_client.v1 import seq2seq_pb2 as messages
from attendant_client.v1 import seq2seq_pb2_grpc
from tests.http_serving import Http
from tests.inference import infer_request, inference_stub

WORDS = ["badge", "face", "a", "jig"]
OPTIONS: list[GenerateOptions] = [
    {"beam_size": 4, "num_hypotheses": 3, "trace": 5},
    {"beam_size": 1, "trace": 1, "max_length": 3},
    {"beam_size": 3, "trace": 32, "min_length": 4, "no_repeat_ngram_size": 1, "suppress_unk": True},
    {"alternatives": True, "num_hypotheses": 3, "beam_size": 2, "trace": 4, "target_prefix": ["K"]},
    {"sampling": Sampling(seed=3), "num_hypotheses": 2, "trace": 2},
    {"beam_size": 2, "trace": 3, "masked_source_positions": [0, 2]},
]


async def test_every_call_of_the_client_has_the_librarys_trace(client: AttendantClient, tiny_bundle_path: Path) -> None:
    model = attendant.load(tiny_bundle_path)
    for options in OPTIONS:
        words = WORDS if "masked_source_positions" not in options else WORDS[:2]
        expected = model.generate(words, **options)
        untraced = model.generate(words, **{**options, "trace": 0})
        together = await asyncio.gather(*(client.generate(word, **options) for word in words))
        for place, word in enumerate(words):
            trace = expected[place].trace
            assert trace is not None and untraced[place].trace is None
            assert [each.score for each in expected[place].hypotheses] == [
                each.score for each in untraced[place].hypotheses
            ]
            stream = client.stream(word, **options)
            assert len([delta async for delta in stream]) <= 48
            assert together[place].trace == stream.generation.trace == trace
            ended = [end for search in trace.searches for end in search.ended if end.hypothesis is not None]
            ends = {end.hypothesis: end for end in ended}
            for rank, hypothesis in enumerate(together[place].hypotheses):
                assert (ends[rank].score, ends[rank].finish_reason) == (hypothesis.score, hypothesis.finish_reason)


async def test_a_trace_rebuilds_the_answer(client: AttendantClient) -> None:
    answer = await client.generate("badge", beam_size=4, num_hypotheses=4, trace=2, attention=True)
    assert answer.trace is not None
    (search,) = answer.trace.searches
    for end in search.ended:
        if end.hypothesis is not None:
            hypothesis = answer.hypotheses[end.hypothesis]
            path = search.path(end.step, end.live)
            assert search.tokens(end.step, end.live) == hypothesis.tokens
            rows = [search.steps[step].attention[live] for step, live in path]
            assert rows[: len(hypothesis.attention)] == list(hypothesis.attention)
            assert len(search.coverage(end.step, end.live)) == len(answer.source_tokens)


async def test_masked_positions_get_no_attention(client: AttendantClient) -> None:
    answer = await client.generate("badge", attention=True, masked_source_positions=[1, 3], max_length=6)
    assert all(row[1] == row[3] == 0 for row in answer.best.attention)
    plain = await client.generate("badge", attention=True, max_length=6)
    assert plain.best.score != answer.best.score
    alongside = await asyncio.gather(
        *(client.generate("badge", attention=True, masked_source_positions=[at], max_length=6) for at in range(5)),
        client.generate("badge", attention=True, max_length=6),
    )
    assert alongside[-1].hypotheses == plain.hypotheses
    assert len({each.best.score for each in alongside}) == 6


@pytest.mark.parametrize(
    ("options", "field", "limit"),
    [
        ({"trace": 33}, "output.trace", "is 33, must be 0 to 32"),
        ({"masked_source_positions": [6]}, "decoding.masked_source_positions", "is 6, must be positions from 0 to 5"),
        (
            {"masked_source_positions": range(9)},
            "decoding.masked_source_positions",
            "is 0, 1, 2, 3, 4, 5, 6, 7, 8, must",
        ),
        ({"masked_source_positions": range(6)}, "decoding.masked_source_positions", "but not all of them"),
    ],
)
async def test_trace_options_out_of_range_are_refused(
    client: AttendantClient, options: dict, field: str, limit: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await client.generate("badge", **options)
    (violation,) = caught.value.violations
    assert violation.field == field and limit in violation.description


async def test_no_trace_is_larger_than_estimated(target: str) -> None:
    """Requests every output of hypotheses that all have the longest length."""
    options = {"beam_size": 6, "min_length": 40, "max_length": 40, "no_repeat_ngram_size": 3}
    request = messages.GenerateRequest(text="badge" * 4, decoding=options, output={"trace": 16})
    async with grpc.aio.insecure_channel(target) as channel:
        response = await seq2seq_pb2_grpc.Seq2SeqStub(channel).Generate(request)
    estimate = max_trace_bytes(DecodingOptions(**options, trace=16), 21)
    assert estimate / 5 < response.trace.ByteSize() < estimate


@pytest.mark.asyncio(loop_scope="module")
async def test_positions_that_can_not_be_masked_are_refused(web: Http) -> None:
    masked = await web.post("/v1/generate", {"text": "abc", "decoding": {"maskedSourcePositions": ["x", -1, 1]}})
    faults = masked.json["details"][0]["fieldViolations"]
    assert [fault["field"] for fault in faults] == [f"decoding.masked_source_positions[{place}]" for place in (0, 1)]
    refused = await web.post("/v1/generate", {"text": "abc", "decoding": {"masked_source_positions": [1]}})
    assert "must be empty: this model does not support masks" in refused.json["detail"]


async def test_open_inference_has_the_trace_as_json(target: str, client: AttendantClient) -> None:
    parameters = {
        "beam_size": {"int64_param": 2},
        "trace": {"int64_param": 3},
        "masked_source_positions": {"string_param": "0 2"},
    }
    request = infer_request("badge", "face", model_name="tiny", outputs=("text", "trace"), parameters=parameters)
    async with grpc.aio.insecure_channel(target) as channel:
        stub = inference_stub(channel)
        response = await stub.ModelInfer(request)
        traces = response.outputs[1].contents.bytes_contents
        assert list(response.outputs[1].shape) == [2]
        request.outputs.pop()
        assert len((await stub.ModelInfer(request)).outputs) == 1
        request.parameters["masked_source_positions"].string_param = "0;2"
        with pytest.raises(grpc.aio.AioRpcError, match="must be positions, separated by spaces"):
            await stub.ModelInfer(request)
    for word, text in zip(("badge", "face"), traces, strict=True):
        expected = await client.generate(word, beam_size=2, trace=3, masked_source_positions=[0, 2])
        assert trace_of(json_format.Parse(text, messages.Trace())) == expected.trace
