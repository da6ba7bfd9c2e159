"""Tests of every decoding and output option on the real server: its effect, alone and alongside other requests."""

import asyncio
import random
from pathlib import Path

import grpc
import numpy as np
import pytest
from google.protobuf import json_format

import attendant
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.decoding.trace import max_trace_bytes
from attendant_client import (
    AttendantClient,
    BlockingClient,
    FinishReason,
    GenerateOptions,
    Generation,
    InvalidArgument,
    Sampling,
)
from attendant_client.messages import trace_of
from attendant_client.v1 import seq2seq_pb2 as messages
from attendant_client.v1 import seq2seq_pb2_grpc
from tests.inference import infer_request, inference_stub

WORDS = ["badge", "a", "abcdefghij", "deaf", "jig" * 10]
Answers = dict[tuple[str, str], Generation]
"""Answers by word and name of options."""

# The temperature gives long targets that differ and include UNK.
HOT = Sampling(temperature=3.0, seed=5)
OPTIONS: dict[str, GenerateOptions] = {
    "greedy": {},
    "beam": {"beam_size": 4, "num_hypotheses": 4},
    "length penalty": {"beam_size": 3, "length_penalty": 1.5},
    "mean": {"beam_size": 3, "length_penalty": 1.0, "length_penalty_offset": 0.0},
    "coverage penalty": {"beam_size": 4, "num_hypotheses": 2, "coverage_penalty": 0.4},
    "lengths": {"beam_size": 2, "min_length": 6, "max_length": 9},
    "ratios": {"min_length_ratio": 1.2, "max_length_ratio": 1.5},
    "patience": {"beam_size": 3, "patience": 2.0},
    "bigrams": {"no_repeat_ngram_size": 2, "min_length": 12, "beam_size": 2},
    "repetition": {"repetition_penalty": 1.7, "min_length": 8},
    "repetition in a beam": {"repetition_penalty": 1.7, "min_length": 8, "beam_size": 4, "num_hypotheses": 3},
    "no UNK": {"suppress_unk": True, "min_length": 10},
    "prefix": {"target_prefix": ["AA", "B"], "beam_size": 3, "num_hypotheses": 2},
    "alternatives": {"alternatives": True, "num_hypotheses": 4},
    "alternatives of beams": {"alternatives": True, "num_hypotheses": 4, "beam_size": 2, "target_prefix": ["K"]},
    "sampling": {"sampling": Sampling(seed=1), "num_hypotheses": 3},
    "hot sampling": {"sampling": HOT, "num_hypotheses": 8, "repetition_penalty": 1.3, "target_prefix": ["G"]},
    "narrow sampling": {"sampling": Sampling(seed=1, top_k=3, top_p=0.8), "no_repeat_ngram_size": 1},
    "replaced": {"sampling": HOT, "replace_unknowns": True, "num_hypotheses": 8},
    "trace": {"trace": 5, "beam_size": 4, "num_hypotheses": 3},
    "trace of alternatives": {"trace": 4, "alternatives": True, "num_hypotheses": 3, "target_prefix": ["K"]},
    "trace of draws": {"trace": 2, "sampling": Sampling(seed=3), "num_hypotheses": 2},
    "masked": {"masked_source_positions": [0], "beam_size": 2, "trace": 32},
}
ARRIVAL_SECONDS = 0.3
"""The unary calls arrive at random times within this duration."""


@pytest.fixture(scope="module")
def alone(target: str) -> Answers:
    """Returns the answer to each word with each of the options, one call after the other."""
    with BlockingClient(target) as client:
        return {
            (word, name): client.generate(word, **options, attention=True, token_log_probs=True)
            for name, options in OPTIONS.items()
            for word in WORDS
        }


async def test_answers_are_the_same_alone_and_alongside_all_others(client: AttendantClient, alone: Answers) -> None:
    rng = random.Random(1)
    questions = rng.sample(list(alone), len(alone))
    options = [OPTIONS[name] | {"attention": True, "token_log_probs": True} for _, name in questions]

    async def ask(word: str, delay: float, options: GenerateOptions) -> Generation:
        await asyncio.sleep(delay)
        return await client.generate(word, **options)

    together = await asyncio.gather(
        *(ask(word, ARRIVAL_SECONDS * rng.random(), each) for (word, _), each in zip(questions, options, strict=True))
    )
    async with client.bulk() as bulk:
        streamed = await asyncio.gather(
            *(bulk.generate(word, **each) for (word, _), each in zip(questions, options, strict=True))
        )
    for answers in (together, streamed):
        assert [answer.hypotheses for answer in answers] == [alone[question].hypotheses for question in questions]
        assert [answer.trace for answer in answers] == [alone[question].trace for question in questions]
    for name in OPTIONS:
        listed = await client.generate(WORDS, **OPTIONS[name], attention=True, token_log_probs=True)
        assert [answer.hypotheses for answer in listed] == [alone[word, name].hypotheses for word in WORDS]
    assert max(answer.timings.mean_batch_rows for answer in streamed) > 16, "they shared their steps"


def test_all_options_reach_the_engine(alone: Answers, tiny_bundle_path: Path) -> None:
    """Compares with the library, whose search tests/unit/runtime compares with an independent one."""
    model = attendant.load(tiny_bundle_path)
    for name, options in OPTIONS.items():
        expected = model.generate(WORDS, **options, attention=True, token_log_probs=True)
        for word, ours in zip(WORDS, expected, strict=True):
            theirs = alone[word, name]
            assert (ours.source_tokens, ours.trace) == (theirs.source_tokens, theirs.trace)
            for mine, other in zip(ours.hypotheses, theirs.hypotheses, strict=True):
                facts = mine.text, mine.tokens, mine.finish_reason
                assert facts == (other.text, other.tokens, other.finish_reason), name
                assert np.float32(mine.score) == other.score, "bit for bit, alone and with others"
                assert tuple(map(np.float32, mine.token_log_probs)) == other.token_log_probs
                assert np.array_equal(mine.attention, np.array(other.attention))


@pytest.mark.parametrize("name", OPTIONS)
async def test_a_stream_is_the_answer_in_pieces(client: AttendantClient, alone: Answers, name: str) -> None:
    async def read(word: str) -> None:
        stream = client.stream(word, **OPTIONS[name], attention=True, token_log_probs=True)
        deltas = [delta async for delta in stream]
        best = stream.generation.best
        assert tuple(token for delta in deltas for token in delta.tokens) == best.tokens
        assert "".join(delta.text for delta in deltas) == best.text
        assert stream.generation.hypotheses == alone[word, name].hypotheses
        assert stream.generation.trace == alone[word, name].trace

    await asyncio.gather(*map(read, WORDS))


@pytest.mark.parametrize(
    "name",
    [
        *("greedy", "beam", "length penalty", "mean", "patience", "prefix", "alternatives", "alternatives of beams"),
        *("sampling", "hot sampling"),
    ],
)
async def test_a_score_of_the_answer_gives_its_log_prob(client: AttendantClient, alone: Answers, name: str) -> None:
    """Uses only options that ban no symbols, because the probability of banned symbols goes to the others."""
    for word in WORDS[1:]:
        for hypothesis in alone[word, name].hypotheses:
            has_ended = hypothesis.finish_reason is FinishReason.EOS
            score = await client.score(word, hypothesis.tokens, include_eos=has_ended, attention=True)
            assert (score.log_prob, score.token_log_probs) == (hypothesis.log_prob, hypothesis.token_log_probs)
            assert (score.target_tokens, score.attention) == (hypothesis.tokens, hypothesis.attention)


async def test_unknowns_become_symbols_of_the_source(client: AttendantClient) -> None:
    """Sends a source without any character of the vocabulary; tests/unit/runtime tests the choice among symbols."""
    options: GenerateOptions = {"sampling": HOT, "num_hypotheses": 8, "min_length": 12}
    plain = await client.generate("xyzé", **options)
    replaced = await client.generate("xyzé", **options, replace_unknowns=True)
    for hypothesis, other in zip(plain.hypotheses, replaced.hypotheses, strict=True):
        for token, replacement in zip(hypothesis.tokens, other.tokens, strict=True):
            assert replacement in "xyzé" if token == "<unk>" else replacement == token
        assert other.text == " ".join(other.tokens)
        assert (other.score, other.attention) == (hypothesis.score, None)
    assert any("<unk>" in hypothesis.tokens for hypothesis in plain.hypotheses)


async def test_a_trace_rebuilds_the_answer(client: AttendantClient, alone: Answers) -> None:
    answer = await client.generate("badge", beam_size=4, num_hypotheses=4, trace=2, attention=True)
    assert answer.trace is not None and alone["badge", "beam"].trace is None
    untraced = [hypothesis.score for hypothesis in alone["badge", "beam"].hypotheses]
    assert [hypothesis.score for hypothesis in answer.hypotheses] == untraced
    (search,) = answer.trace.searches
    for end in search.ended:
        if end.hypothesis is not None:
            hypothesis = answer.hypotheses[end.hypothesis]
            assert (end.score, end.finish_reason) == (hypothesis.score, hypothesis.finish_reason)
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
    ("options", "field", "reason"),
    [
        ({"trace": 33}, "output.trace", "is 33, must be 0 to 32"),
        ({"masked_source_positions": [6]}, "decoding.masked_source_positions", "is 6, must be positions from 0 to 5"),
        ({"masked_source_positions": range(6)}, "decoding.masked_source_positions", "but not all of them"),
    ],
)
async def test_a_long_trace_and_wrong_positions_are_refused(
    client: AttendantClient, options: GenerateOptions, field: str, reason: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await client.generate("badge", **options)
    (violation,) = caught.value.violations
    assert violation.field == field and reason in violation.description


async def test_no_trace_is_larger_than_estimated(target: str) -> None:
    """Requests every output of hypotheses that all have the longest length."""
    options = {"beam_size": 6, "min_length": 40, "max_length": 40, "no_repeat_ngram_size": 3}
    request = messages.GenerateRequest(text="badge" * 4, decoding=options, output={"trace": 16})
    async with grpc.aio.insecure_channel(target) as channel:
        response = await seq2seq_pb2_grpc.Seq2SeqStub(channel).Generate(request)
    estimate = max_trace_bytes(DecodingOptions(**options, trace=16), 21)
    assert estimate / 5 < response.trace.ByteSize() < estimate


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
    for word, text in zip(("badge", "face"), traces, strict=True):
        expected = await client.generate(word, beam_size=2, trace=3, masked_source_positions=[0, 2])
        assert trace_of(json_format.Parse(text, messages.Trace())) == expected.trace
