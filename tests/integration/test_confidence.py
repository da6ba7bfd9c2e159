"""Tests of the confidence of answers in every API, and of the warning about a low one."""

from dataclasses import replace

import pytest

import attendant_client
from attendant.runtime.answers import answer_fields
from attendant.runtime.bundle.bigrams import SeenBigrams
from attendant.runtime.bundle.bundle import Bundle, BundleModel
from attendant.runtime.bundle.manifest import Calibration, RightRule, SignalTerm
from attendant.runtime.bundle.tokenizer import BOS_ID, EOS_ID
from attendant.runtime.confidence import answer_signals, confidence_of, source_signals
from attendant.runtime.decoding.batch import decode_all
from attendant.runtime.decoding.hypothesis import FinishReason, Hypothesis
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.requests import ReadRequest
from attendant_client.v1 import seq2seq_pb2 as messages
from tests.http_serving import http_served
from tests.inference import infer_body, infer_request, inference_stub
from tests.serving import LETTERS, fake_bundle, fake_stepper, served

CALIBRATION = Calibration(
    right=RightRule(metric="exact_match", at_least=100),
    data="none",
    num_examples=1000,
    precision="fp32",
    signals={
        "mean_surprise": SignalTerm(weight=-1.0),
        "highest_surprise": SignalTerm(weight=-1.0),
        "unseen_ratio": SignalTerm(weight=-1.0, high=0.5),
    },
    scores=(-0.5, 1.0),
    probabilities=(0.05, 0.95),
    warn_below=0.3,
)
KNOWN = ["abcd", "bcde", "cdefgh"]


def calibrated_bundle() -> Bundle:
    bundle = fake_bundle(beam_size=1)
    seen = SeenBigrams.of_sources(bundle.source_tokenizer.encode_batch(KNOWN))
    manifest = bundle.manifest.model_copy(update={"confidence": CALIBRATION}).signed()
    return replace(bundle, manifest=manifest, seen_bigrams=seen)


BUNDLE = calibrated_bundle()


def expected_confidence(text: str) -> float:
    source = BUNDLE.source_tokenizer.encode(text)
    options = DecodingOptions(beam_size=1, max_length=20)
    ((best,),) = decode_all(fake_stepper(), [BUNDLE.source_ids(source)], options, BUNDLE.manifest.special_ids)
    return confidence_of(answer_signals(source_signals(source, BUNDLE.seen_bigrams), best), CALIBRATION)


def warnings_about(confidence: float) -> list[str]:
    if confidence >= CALIBRATION.warn_below:
        return []
    return [f"the confidence is {confidence:.2f}, below 0.30: the answer may well be wrong"]


TEXTS = [*KNOWN, "abcdefgh", "cd", "de", "hgfe"]
EXPECTED = {text: expected_confidence(text) for text in TEXTS}


async def test_an_answer_has_a_confidence_and_a_warning_if_it_is_low() -> None:
    """Checks `Generate`; tests/integration/test_calls.py compares the answers of all calls."""
    assert {confidence < 0.3 for confidence in EXPECTED.values()} == {True, False}
    async with served(fake_stepper(), BUNDLE) as server:
        requests = [messages.GenerateRequest(text=text) for text in TEXTS]
        answers = [await server.stub.Generate(request) for request in requests]
    for text, answer in zip(TEXTS, answers, strict=True):
        confidence = EXPECTED[text]
        assert answer.hypotheses[0].confidence == pytest.approx(confidence, rel=1e-6)
        assert list(answer.warnings) == warnings_about(confidence)


async def test_the_open_inference_protocol_returns_confidence() -> None:
    async with served(fake_stepper(), BUNDLE) as server, http_served(server) as web:
        body = infer_body("abcd", "hgfe", outputs=("confidence",))
        (output,) = (await web.post("/v2/models/fake/infer", body)).json["outputs"]
        assert output["data"] == pytest.approx([EXPECTED["abcd"], 0.05], rel=1e-6)
        stub = inference_stub(server.channel)
        (output,) = (await stub.ModelInfer(infer_request("abcd", outputs=("confidence",)))).outputs
        assert list(output.contents.fp32_contents) == pytest.approx([EXPECTED["abcd"]], rel=1e-6)


async def test_every_hypothesis_has_its_own_confidence() -> None:
    async with served(fake_stepper(), BUNDLE) as server, attendant_client.AttendantClient(server.target) as client:
        answer = await client.generate("abcdefgh", beam_size=4, num_hypotheses=4)
    confidences = [hypothesis.confidence for hypothesis in answer.hypotheses]
    assert None not in confidences and len(set(confidences)) > 1
    assert list(answer.warnings) == warnings_about(confidences[0] or 0.0)


async def test_an_uncalibrated_answer_has_no_confidence_and_no_warning() -> None:
    async with (
        served(fake_stepper(), fake_bundle()) as server,
        http_served(server) as web,
        attendant_client.AttendantClient(server.target) as client,
    ):
        answer = await client.generate(LETTERS[::-1])
        assert answer.best.confidence is None and not answer.warnings
        assert "confidence" not in (await web.post("/v1/generate", {"text": "a"})).json["hypotheses"][0]
        body = infer_body("a", outputs=("confidence",))
        (output,) = (await web.post("/v2/models/fake/infer", body)).json["outputs"]
        assert output["data"] == [None]


def test_a_warning_has_the_digits_that_show_the_difference() -> None:
    hypothesis = Hypothesis((4, 5), (-0.9, -0.5, -0.4), -1.8, -1.8, FinishReason.EOS)
    ids = tuple(BUNDLE.source_tokenizer.encode("abcd"))
    request = ReadRequest(source_ids=(*ids, EOS_ID), num_source_tokens=4, options=DecodingOptions(max_length=20))

    def warnings(warn_below: float) -> tuple[str, ...]:
        manifest = BUNDLE.manifest.model_copy(
            update={"confidence": CALIBRATION.model_copy(update={"warn_below": warn_below})}
        )
        model = BundleModel(bundle=replace(BUNDLE, manifest=manifest), precision="fp32", limits=manifest.limits)
        warned: tuple[str, ...] = answer_fields([hypothesis], None, request, model)["warnings"]
        return warned

    assert warnings(0.99) == ("the confidence is 0.72, below 0.99: the answer may well be wrong",)
    assert warnings(0.7198) == ("the confidence is 0.7197, below 0.7198: the answer may well be wrong",)


def test_the_symbol_that_begins_a_source_is_no_token_of_it() -> None:
    """Checks sources with and without BOS. Bigrams always include BOS, and lengths never count it."""
    model = BundleModel(bundle=BUNDLE, precision="fp32", limits=BUNDLE.manifest.limits)
    hypothesis = Hypothesis((4, 5), (-0.9, -0.5, -0.4), -1.8, -1.8, FinishReason.EOS)
    ids, options = tuple(BUNDLE.source_tokenizer.encode("abcd")), DecodingOptions(max_length=20)
    confidences = []
    for begin in ((), (BOS_ID,)):
        request = ReadRequest(source_ids=(*begin, *ids, EOS_ID), num_source_tokens=len(ids), options=options)
        (fields,) = answer_fields([hypothesis], None, request, model)["hypotheses"]
        confidences.append(fields["confidence"])
    assert confidences[0] == confidences[1] and 0.05 < confidences[0] < 0.95
