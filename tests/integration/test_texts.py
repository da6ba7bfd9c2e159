"""Texts as people send them, at every door: gRPC, HTTP, the Open Inference Protocol, in process and by command."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

import attendant
from attendant.server.inference.v2 import open_inference_pb2 as wire
from attendant.server.inference.v2 import open_inference_pb2_grpc
from attendant_client.command import main
from attendant_client.v1 import seq2seq_pb2 as messages
from tests.http_serving import Http
from tests.paths import ROOT
from tests.serving import Served

CLEAN = "abc"
SPACED = ["abc\n", "\tabc", "\ufeffabc", "abc\u00a0", "a\u200bbc", "ab\u00adc \r\n"]

pytestmark = pytest.mark.asyncio(loop_scope="module")

Generate = messages.GenerateRequest


async def by_generate(server: Served, web: Http, text: str) -> Any:
    response = await server.stub.Generate(Generate(text=text))
    return list(response.source_tokens), response.hypotheses[0].text, list(response.warnings)


async def by_stream(server: Served, web: Http, text: str) -> Any:
    *_, last = [event async for event in server.stub.GenerateStream(Generate(text=text))]
    return list(last.response.source_tokens), last.response.hypotheses[0].text, list(last.response.warnings)


async def by_batch(server: Served, web: Http, text: str) -> Any:
    call = server.stub.GenerateBatch()
    await call.write(Generate(text=text))
    await call.done_writing()
    (answer,) = [one async for one in call]
    response = answer.response
    return list(response.source_tokens), response.hypotheses[0].text, list(response.warnings)


async def by_many(server: Served, web: Http, text: str) -> Any:
    (answer,) = (await server.stub.GenerateMany(messages.GenerateManyRequest(requests=[Generate(text=text)]))).results
    response = answer.response
    return list(response.source_tokens), response.hypotheses[0].text, list(response.warnings)


async def by_http(server: Served, web: Http, text: str) -> Any:
    answer = (await web.post("/v1/generate", {"text": text})).json
    return answer["sourceTokens"], answer["hypotheses"][0]["text"], answer["warnings"]


OUTPUTS = "source_tokens", "text", "warnings"


async def by_inference(server: Served, web: Http, text: str) -> Any:
    stub = open_inference_pb2_grpc.GRPCInferenceServiceStub(server.channel)
    tensor = wire.ModelInferRequest.InferInputTensor(name="text", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(text.encode())
    names = [wire.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in OUTPUTS]
    response = await stub.ModelInfer(wire.ModelInferRequest(model_name="fake", inputs=[tensor], outputs=names))
    tokens, texts, warnings = ([one.decode() for one in output.contents.bytes_contents] for output in response.outputs)
    return tokens, texts[0], warnings


Door = Callable[[Served, Http, str], Any]
DOORS: Sequence[Door] = (by_generate, by_stream, by_batch, by_many, by_http, by_inference)


@pytest.mark.parametrize("door", DOORS)
async def test_white_space_changes_no_answer(server: Served, web: Http, door: Door) -> None:
    clean = await door(server, web, CLEAN)
    assert clean[0] == ["a", "b", "c", "</s>"]
    for text in SPACED:
        assert await door(server, web, text) == clean


async def test_white_space_changes_no_score(server: Served, web: Http) -> None:
    def score(source: str, target: str) -> Any:
        return server.stub.Score(messages.ScoreRequest(source_text=source, target_text=target))

    clean = await score(CLEAN, "AA B")
    for text in SPACED:
        assert (await score(text, "\ufeffAA\u00a0\u200b B\n")).log_prob == clean.log_prob
    answer = await web.post("/v1/score", {"source_text": "\tabc\n", "target_text": " AA\t\tB"})
    assert answer.json["logProb"] == pytest.approx(clean.log_prob)


async def test_white_space_in_process_and_by_command(
    capsys: pytest.CaptureFixture[str], tiny_bundle_path: Path
) -> None:
    model = attendant.load(tiny_bundle_path)
    clean = model.generate("face")
    for text in ("face\n", "\tface", "\ufeffface", "fa\u00adce\u00a0", "fa\u200bce"):
        assert model.generate(text).best.score == clean.best.score
        assert model.generate([text])[0].source_tokens == clean.source_tokens
        stream = model.stream(text)
        assert "".join(delta.text for delta in stream) == clean.best.text
        assert stream.generation.source_tokens == clean.source_tokens
        assert model.score(text, "AA  B\n").log_prob == model.score("face", "AA B").log_prob
    status = await asyncio.to_thread(
        main, ["generate", "--bundle", str(tiny_bundle_path), "face\n", "fa\u200bce\u00a0"]
    )
    assert status == 0
    assert capsys.readouterr().out.splitlines() == [clean.best.text] * 2


@pytest.mark.parametrize("door", DOORS)
async def test_unknown_symbols_are_named(server: Served, web: Http, door: Door) -> None:
    _, _, (partly, *_) = await door(server, web, "ab漢\u0301cœ")
    assert partly.startswith("the vocabulary lacks symbols of the source ('漢', '\u0301', 'œ')")
    _, _, (wholly, *_) = await door(server, web, "漢字漢")
    assert wholly.startswith("no symbol of the source is in the vocabulary ('漢', '字')")
    _, _, (several, *_) = await door(server, web, "0123456789")
    assert "'7', and 2 more)" in several


async def test_unknown_symbols_of_a_score_are_named(server: Served, web: Http) -> None:
    request = messages.ScoreRequest(source_text="ab\x9f?", target_text="AA \u202eZZ ZZ")
    source, target = (await server.stub.Score(request)).warnings
    assert "symbols of the source ('?')" in source and "symbols of the target ('ZZ')" in target
    answer = await web.post("/v1/score", {"source_text": "ab", "target_text": "QQ"})
    assert len(answer.json["warnings"]) == 1
    tokens = messages.Tokens(tokens=["<unk>"])
    assert not (await server.stub.Score(messages.ScoreRequest(source_text="ab", target_tokens=tokens))).warnings


@pytest.mark.parametrize("door", (by_generate, by_http))
async def test_an_answer_that_is_cut_is_told(server: Served, web: Http, door: Door) -> None:
    texts = ["a" * number + letter for number in range(1, 6) for letter in "bcdefgh"]
    answers = [await door(server, web, text) for text in texts]
    assert all(one[2] in ([], ["the answer was cut after max_length = 20 tokens: split the source"]) for one in answers)
    request = Generate(text="abc", decoding=messages.DecodingOptions(min_length=2, max_length=2))
    (warning,) = (await server.stub.Generate(request)).warnings
    assert warning == "the answer was cut after max_length = 2 tokens: raise max_length, up to 20"
    bans = messages.DecodingOptions(min_length=20, no_repeat_ngram_size=1)
    (warning,) = (await server.stub.Generate(Generate(text="abc", decoding=bans))).warnings
    assert warning == "the answer ends after 9 tokens because the bans left no other token"


async def test_warnings_in_process_and_by_command(capsys: pytest.CaptureFixture[str], tiny_bundle_path: Path) -> None:
    model = attendant.load(tiny_bundle_path)
    warning, *_ = model.generate("fac\u0153", min_length=2).warnings
    assert "('\u0153')" in warning and model.score("face", "AA ?").warnings
    bundle = "--bundle", str(tiny_bundle_path)
    assert await asyncio.to_thread(main, ["generate", *bundle, "face", "--min-length", "3", "--max-length", "3"]) == 0
    assert capsys.readouterr().err == (
        "attendant: the answer was cut after max_length = 3 tokens: raise max_length, up to 48\n"
    )
    assert await asyncio.to_thread(main, ["score", *bundle, "fac\u0153", "AA ZZ"]) == 0
    assert "('\u0153')" in (written := capsys.readouterr().err) and "('ZZ')" in written


async def test_a_prefix_may_be_a_text_at_every_door(server: Served, web: Http) -> None:
    """Sounds are words: a prefix that ends within one begins an answer that goes on with any that begins so."""
    options = messages.DecodingOptions(target_prefix_text="AA H", beam_size=2)
    response = await server.stub.Generate(Generate(text="abc", decoding=options))
    text = response.hypotheses[0].text
    assert text.startswith("AA HH")
    answer = await web.post("/v1/generate", {"text": "abc", "decoding": {"targetPrefixText": "AA H", "beamSize": 2}})
    assert answer.json["hypotheses"][0]["text"] == text
    stub = open_inference_pb2_grpc.GRPCInferenceServiceStub(server.channel)
    request = wire.ModelInferRequest(model_name="fake")
    request.inputs.add(name="text", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"abc")
    request.parameters["target_prefix_text"].string_param = "AA H"
    request.parameters["beam_size"].int64_param = 2
    assert (await stub.ModelInfer(request)).outputs[0].contents.bytes_contents[0].decode() == text
    request.parameters["target_prefix_text"].int64_param = 2
    with pytest.raises(grpc.aio.AioRpcError, match=r"parameters.target_prefix_text is 2, must be a text"):
        await stub.ModelInfer(request)
    tokens = messages.DecodingOptions(target_prefix=messages.Tokens(tokens=["H"]))
    with pytest.raises(grpc.aio.AioRpcError, match=r"a text belongs into target_prefix_text"):
        await server.stub.Generate(Generate(text="abc", decoding=tokens))


async def test_a_prefix_may_be_a_text_in_process_and_by_command(
    capsys: pytest.CaptureFixture[str], tiny_bundle_path: Path
) -> None:
    model = attendant.load(tiny_bundle_path)
    for beam_size in (1, 3):
        found = model.generate("face", target_prefix_text="IY A", beam_size=beam_size, num_hypotheses=beam_size)
        assert all(one.text.startswith(("IY AA", "IY AE")) for one in found.hypotheses)
    line = ["generate", "--bundle", str(tiny_bundle_path), "face", "--target-prefix-text", "IY A", "--beam-size", "3"]
    assert await asyncio.to_thread(main, line) == 0
    assert capsys.readouterr().out == found.best.text + "\n"
    with pytest.raises(TypeError, match="a text belongs into target_prefix_text"):
        model.generate("face", target_prefix="IY")


async def test_hypotheses_are_distinct_by_text_in_process() -> None:
    model = attendant.load(ROOT / "models" / "normalize-numbers-en")
    for text in ("1,204", "one hundred five", "21st"):
        found = model.generate(text, beam_size=8, num_hypotheses=8)
        texts = [one.text for one in found.hypotheses]
        assert len(set(texts)) == len(texts) == 8
        assert [one.score for one in found.hypotheses] == sorted((one.score for one in found.hypotheses), reverse=True)
