"""Tests of texts as users send them, to a server, to the library and to the command.

Tests in tests/unit/runtime cover the details of normalization and of prefixes.
"""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

import attendant
from attendant_client.command import main
from attendant_client.v1 import seq2seq_pb2 as messages
from tests.http_serving import Http
from tests.inference import infer_request, inference_stub
from tests.paths import ROOT
from tests.serving import Served

pytestmark = pytest.mark.asyncio(loop_scope="module")

Generate = messages.GenerateRequest


async def test_warnings_name_the_unknown_symbols(server: Served) -> None:
    async def warning(text: str, **decoding: Any) -> str:
        request = Generate(text=text, decoding=messages.DecodingOptions(**decoding))
        return str((await server.stub.Generate(request)).warnings[0])

    assert "('漢', '\u0301', 'œ')" in await warning("ab漢\u0301cœ")
    assert "('👩', '👧')" in await warning("a👩\u200d👧")
    assert (await warning("漢字漢")).startswith("no symbol of the source is in the vocabulary ('漢', '字')")
    assert "'7', and 2 more)" in await warning("0123456789")
    cut = await warning("abc", min_length=2, max_length=2)
    assert "max_length = 2 tokens: raise max_length (or max_length_ratio, if it is set), up to 20" in cut
    cut = await warning("abc", min_length=20)
    assert cut == "the answer was cut after max_length = 20 tokens: split the source"
    ended = await warning("abc", min_length=20, no_repeat_ngram_size=1)
    assert ended == "the answer ends after 9 tokens because the bans left no other token"


async def test_a_score_cleans_its_texts_and_warns(server: Served, web: Http) -> None:
    async def score(source: str, target: str) -> messages.ScoreResponse:
        request = messages.ScoreRequest(source_text=source, target_text=target)
        response: messages.ScoreResponse = await server.stub.Score(request)
        return response

    clean = await score("abc", "AA B")
    assert (await score("\tabc\n", "\ufeffAA\u00a0\u200b B\n")).log_prob == clean.log_prob
    answer = await web.post("/v1/score", {"source_text": "\tabc\n", "target_text": " AA\t\tB"})
    assert answer.json["logProb"] == pytest.approx(clean.log_prob)
    source, target = (await score("ab\x9f?", "AA \u202eZZ ZZ")).warnings
    assert "symbols of the source ('?')" in source and "symbols of the target ('ZZ')" in target
    answer = await web.post("/v1/score", {"source_text": "ab", "target_text": "QQ"})
    assert len(answer.json["warnings"]) == 1
    tokens = messages.Tokens(tokens=["<unk>"])
    assert not (await server.stub.Score(messages.ScoreRequest(source_text="ab", target_tokens=tokens))).warnings


async def test_a_prefix_may_be_a_text(server: Served, web: Http) -> None:
    """Sends a prefix that ends within a word (words are sounds here). Any word that fits may complete it."""
    options = messages.DecodingOptions(target_prefix_text="AA H", beam_size=2)
    text = (await server.stub.Generate(Generate(text="abc", decoding=options))).hypotheses[0].text
    assert text.startswith("AA HH")
    answer = await web.post("/v1/generate", {"text": "abc", "decoding": {"targetPrefixText": "AA H", "beamSize": 2}})
    assert answer.json["hypotheses"][0]["text"] == text
    stub = inference_stub(server.channel)
    request = infer_request(
        "abc", parameters={"target_prefix_text": {"string_param": "AA H"}, "beam_size": {"int64_param": 2}}
    )
    assert (await stub.ModelInfer(request)).outputs[0].contents.bytes_contents[0].decode() == text
    request.parameters["target_prefix_text"].int64_param = 2
    with pytest.raises(grpc.aio.AioRpcError, match=r"parameters.target_prefix_text is 2, must be a text"):
        await stub.ModelInfer(request)


async def test_the_library_and_the_command_clean_texts_too(
    capsys: pytest.CaptureFixture[str], tiny_bundle_path: Path
) -> None:
    async def command(*arguments: str) -> tuple[str, str]:
        assert await asyncio.to_thread(main, [arguments[0], "--bundle", str(tiny_bundle_path), *arguments[1:]]) == 0
        return capsys.readouterr()

    model = attendant.load(tiny_bundle_path)
    clean = model.generate("face")
    for text in ("\tface\n", "\ufefffa\u00adce\u00a0"):
        assert model.generate(text).best.score == clean.best.score
        assert model.generate([text])[0].source_tokens == clean.source_tokens
        stream = model.stream(text)
        assert "".join(delta.text for delta in stream) == clean.best.text
        assert stream.generation.source_tokens == clean.source_tokens
        assert model.score(text, "AA  B\n").log_prob == model.score("face", "AA B").log_prob
    output, _ = await command("generate", "face\n", "fa\u200bce\u00a0")
    assert output.splitlines() == [clean.best.text] * 2

    warning, *_ = model.generate("fac\u0153", min_length=2).warnings
    assert "('\u0153')" in warning and model.score("face", "AA ?").warnings
    _, errors = await command("generate", "face", "--min-length", "3", "--max-length", "3")
    assert "max_length = 3 tokens: raise max_length" in errors and errors.count("\n") == 1
    _, errors = await command("score", "fac\u0153", "AA ZZ")
    assert "('\u0153')" in errors and "('ZZ')" in errors

    for beam_size in (1, 3):
        answer = model.generate("face", target_prefix_text="IY A", beam_size=beam_size, num_hypotheses=beam_size)
        assert all(hypothesis.text.startswith(("IY AA", "IY AE")) for hypothesis in answer.hypotheses)
    output, _ = await command("generate", "face", "--target-prefix-text", "IY A", "--beam-size", "3")
    assert output == answer.best.text + "\n"
    with pytest.raises(TypeError, match="a text belongs into target_prefix_text"):
        model.generate("face", target_prefix="IY")


async def test_hypotheses_are_distinct_by_text_in_process() -> None:
    model = attendant.load(ROOT / "models" / "normalize-numbers-en")
    for text in ("1,204", "one hundred five", "21st"):
        answer = model.generate(text, beam_size=8, num_hypotheses=8)
        texts = [hypothesis.text for hypothesis in answer.hypotheses]
        assert len(set(texts)) == len(texts) == 8
        scores = [hypothesis.score for hypothesis in answer.hypotheses]
        assert scores == sorted(scores, reverse=True)
