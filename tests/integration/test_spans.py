"""Tests of texts that are answered in parts, and of protected spans, in each API of the server and in the library."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest

import attendant
from attendant.runtime.bundle.bundle import Bundle
from attendant.runtime.bundle.manifest import TEXT_OPTIONS
from attendant.runtime.bundle.tokenizer import SPECIAL_TOKENS
from attendant_client.v1 import seq2seq_pb2 as messages
from tests.fakes import FakeStepper
from tests.paths import ROOT
from tests.serving import Served, failure, fake_bundle, served, symbol_tokenizer

TEXT = "abc. De\nfgh!\n\nab"
PARTS = ["abc.", "De", "fgh!", "ab"]
SYMBOLS = "abcdefghADFGH .!{}0123456789"


def bundle_of(**defaults: Any) -> Bundle:
    """Makes a bundle whose vocabularies have letters and the symbols of stand-ins."""
    tokenizer = symbol_tokenizer(SYMBOLS, characters=True)
    bundle = fake_bundle(**defaults)
    size = tokenizer.vocabulary_size
    manifest = bundle.manifest.model_copy(
        update={
            "source": bundle.manifest.source.model_copy(update={"vocabulary_size": size}),
            "target": bundle.manifest.target.model_copy(update={"vocabulary_size": size}),
        }
    )
    return replace(bundle, manifest=manifest.signed(), source_tokenizer=tokenizer, target_tokenizer=tokenizer)


def stepper() -> FakeStepper:
    return FakeStepper(len(SPECIAL_TOKENS) + len(SYMBOLS))


@pytest.fixture
async def server() -> AsyncIterator[Served]:
    async with served(stepper(), bundle_of(), max_rows=64) as started:
        yield started


def request_of(text: str, **decoding: Any) -> messages.GenerateRequest:
    output = messages.OutputOptions(attention=True, token_log_probs=True)
    return messages.GenerateRequest(text=text, decoding=messages.DecodingOptions(**decoding), output=output)


async def test_a_text_in_parts_is_answered_as_its_parts(server: Served) -> None:
    whole = await server.stub.Generate(request_of(TEXT, split_sentences=True))
    parts = [await server.stub.Generate(request_of(part)) for part in PARTS]
    best, bests = whole.hypotheses[0], [part.hypotheses[0] for part in parts]
    assert best.text == f"{bests[0].text} {bests[1].text}\n{bests[2].text}\n\n{bests[3].text}"
    assert list(best.tokens) == [token for part in bests for token in part.tokens]
    assert list(whole.source_tokens) == [token for part in parts for token in part.source_tokens]
    assert best.log_prob == pytest.approx(sum(part.log_prob for part in bests), abs=1e-4)
    assert best.score == pytest.approx(sum(part.score for part in bests), abs=1e-4)
    assert len(best.token_log_probs) in (len(best.tokens), len(best.tokens) + 1)
    assert sum(best.token_log_probs) == pytest.approx(best.log_prob, abs=1e-4)
    assert (best.attention.rows, best.attention.columns) == (len(best.token_log_probs), len(whole.source_tokens))
    weights = np.array(best.attention.weights).reshape(best.attention.rows, best.attention.columns)
    assert weights.sum(axis=1) == pytest.approx(1.0), "a row attends within its part"
    assert server.sample("attendant_requests_total", model="fake", method="Generate", code="OK") == 5


async def refusal(server: Served, request: messages.GenerateRequest) -> str:
    error = await failure(server.stub.Generate(request))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    return str(error.details())


@pytest.mark.parametrize("option", TEXT_OPTIONS)
async def test_options_that_exclude_text_options_are_refused(option: str, server: Served) -> None:
    message = await refusal(server, request_of(TEXT, **{option: True}, target_prefix_text="a"))
    assert f"decoding.{option} is true, must be false or unset where target_prefix_text is set" in message
    tokens = messages.GenerateRequest(
        tokens=messages.Tokens(tokens=["a"]), decoding=messages.DecodingOptions(**{option: True})
    )
    assert "where tokens is set" in await refusal(server, tokens)


async def test_violations_name_the_part_of_the_text(server: Served) -> None:
    assert "text is 13 tokens long in part 2, must be 1 to 12 tokens long" in await refusal(
        server, request_of("a\n" + 13 * "b" + "\nc", split_sentences=True)
    )
    assert "text is 300 lines and sentences long" in await refusal(
        server, request_of("a\n" * 300, split_sentences=True)
    )
    assert "text is 0 tokens long" in await refusal(server, request_of("\n\n", split_sentences=True))
    blank = await server.stub.Generate(request_of("ab\n\u200b\ncd", split_sentences=True))
    assert blank.hypotheses[0].text.count("\n") == 2


async def test_the_default_of_a_bundle_gives_way_to_options_that_exclude_it() -> None:
    bundle = bundle_of(split_sentences=True, protect_spans=True)
    async with served(stepper(), bundle, max_rows=64) as server:
        defaults = (await server.stub.GetModel(messages.GetModelRequest())).defaults
        assert defaults.split_sentences and defaults.protect_spans
        by_default = await server.stub.Generate(request_of("ab\ncd"))
        assert by_default.hypotheses[0].text.count("\n") == 1
        for decoding in ({"split_sentences": False}, {"target_prefix_text": "a"}, {"alternatives": True}):
            answer = await server.stub.Generate(request_of("ab\ncd", **decoding))
            assert answer.hypotheses[0].text.count("\n") == 0
            assert list(answer.source_tokens) == [*"ab", "<unk>", *"cd", "</s>"] or answer.source_tokens
        tokens = messages.GenerateRequest(tokens=messages.Tokens(tokens=["a", "b"]))
        assert (await server.stub.Generate(tokens)).hypotheses


async def test_a_single_sentence_is_read_alike_with_a_prefix_alternatives_or_a_trace() -> None:
    async with served(stepper(), bundle_of(split_sentences=True, protect_spans=True), max_rows=64) as server:
        plain = await server.stub.Generate(request_of("(ab %s)"))
        assert "".join(plain.source_tokens) == "ab {1}</s>"
        prefix = messages.Tokens(tokens=plain.hypotheses[0].tokens)
        begun = await server.stub.Generate(request_of("(ab %s)", target_prefix=prefix))
        assert begun.hypotheses[0].text == plain.hypotheses[0].text and begun.source_tokens == plain.source_tokens
        others = await server.stub.Generate(request_of("(ab %s)", alternatives=True))
        assert others.source_tokens == plain.source_tokens
        request = request_of("(ab %s)")
        request.output.trace = 2
        assert (await server.stub.Generate(request)).hypotheses == plain.hypotheses


async def test_spans_are_seen_as_stand_ins_and_missed_if_the_answer_lacks_them(server: Served) -> None:
    request = request_of("ab %s {de}", protect_spans=True)
    answer = await server.stub.Generate(request)
    assert "".join(answer.source_tokens) == "ab {1} {2}</s>"
    assert len(answer.warnings) == 1 and "('%s', '{de}')" in answer.warnings[0]
    split = await server.stub.Generate(request_of("ab\na%s\n%s\ncd {x}", protect_spans=True, split_sentences=True))
    assert "".join(split.source_tokens) == "ab</s>a{1}</s>cd {1}</s>"
    missed = [warning for warning in split.warnings if "protected" in warning]
    assert [warning[:11] for warning in missed] == ["part 2 of 3", "part 3 of 3"]
    async with served(FakeStepper(12), max_rows=8) as unable:
        assert "the model's vocabularies can't spell the stand-in {1}" in await refusal(unable, request)
        assert (await unable.stub.Generate(request_of("abc", protect_spans=True))).hypotheses


async def test_a_sampled_text_consists_of_its_parts_samples(server: Served) -> None:
    draw = {"sampling": messages.SamplingOptions(seed=3), "num_hypotheses": 2}
    whole = await server.stub.Generate(request_of("ab\ncd", split_sentences=True, **draw))
    parts = [await server.stub.Generate(request_of(part, **draw)) for part in ("ab", "cd")]
    texts = ["\n".join(part.hypotheses[place].text for part in parts) for place in range(2)]
    assert sorted(each.text for each in whole.hypotheses) == sorted(texts)
    await asyncio.sleep(0)


@pytest.fixture(scope="module")
def model() -> Iterator[attendant.Model]:
    with attendant.load(ROOT / "models" / "g2p-en") as loaded:
        yield loaded


def test_the_library_answers_as_the_server(model: attendant.Model) -> None:
    options = attendant.Options(split_sentences=True, beam_size=2, num_hypotheses=2, attention=True)
    whole = model.generate("face\nbadge", **options)
    parts = model.generate(["face", "badge"], beam_size=2)
    assert whole.best.text == "\n".join(part.best.text for part in parts)
    assert whole.best.log_prob == pytest.approx(sum(part.best.log_prob for part in parts))
    assert whole.best.attention is not None
    assert whole.best.attention.shape == (len(whole.best.tokens) + 1, len(whole.source_tokens))
    stream = model.stream("face\nbadge", **options)
    deltas = list(stream)
    assert "".join(delta.text for delta in deltas) == whole.best.text and len(deltas) > 1
    assert stream.generation.best.log_prob == whole.best.log_prob
    with pytest.raises(attendant.InvalidArgument, match="must be false"):
        model.generate("face {x}", protect_spans=True)


def test_masked_positions_are_those_of_all_parts_together(model: attendant.Model) -> None:
    tokens = model.generate("face\nbadge", split_sentences=True).source_tokens
    place = tokens.index("b")
    options = attendant.Options(split_sentences=True, attention=True)
    masked = model.generate("face\nbadge", masked_source_positions=[0, place], **options)
    assert masked.source_tokens == tokens and masked.best.attention is not None
    assert np.flatnonzero(masked.best.attention.sum(axis=0) == 0).tolist() == [0, place]
    with pytest.raises(attendant.InvalidArgument, match=f"is {len(tokens)}, must be positions from 0 to"):
        model.generate("face\nbadge", masked_source_positions=[len(tokens)], **options)
    second = list(range(place, len(tokens)))
    with pytest.raises(attendant.InvalidArgument, match=rf"is {second[0]}, .*all of part 2, {place} to {second[-1]}$"):
        model.generate("face\nbadge", masked_source_positions=second, **options)
