"""The models that come with the repository: whole, as they were measured, and made of the weights beside them."""

from pathlib import Path

import pytest

from attendant.runtime.bundle.bundle import Bundle, open_bundle
from attendant.runtime.bundle.manifest import Precision
from attendant.runtime.decoding.offline import decode_all
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.golden_check import check_decoding
from attendant.runtime.onnx.stepper import OnnxStepper
from attendant.training.model.stepping.stepper import TorchStepper
from attendant.training.run.loading import load_run

MODELS = Path(__file__).parents[2] / "models"
WORDS = ("attention", "decoder", "onnx", "throughput", "phoneme")
OPTIONS = DecodingOptions(beam_size=4, max_length=40)


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return open_bundle(MODELS / "g2p-en")


def sources(bundle: Bundle) -> list[list[int]]:
    return [bundle.source_ids(bundle.source_tokenizer.encode(word)) for word in WORDS]


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_its_golden_examples_hold_here(bundle: Bundle, precision: Precision) -> None:
    assert check_decoding(bundle, OnnxStepper(bundle, precision), precision, "cpu") == []


def test_it_is_served_in_int8_because_that_was_measured(bundle: Bundle) -> None:
    assert bundle.manifest.default_precision["cpu"] == "int8"
    measured = {(one.metric, one.precision): one for one in bundle.manifest.evaluation}
    assert measured["wer", "int8"].value - measured["wer", "fp32"].value <= 0.2
    assert measured["wer", "int8"].num_examples == 12606


def test_it_is_the_run_beside_it(bundle: Bundle) -> None:
    run = load_run(MODELS / "runs" / "g2p-en")
    assert bundle.manifest.provenance.checkpoint == run.checkpoint
    found, wanted = (
        decode_all(stepper, sources(bundle), OPTIONS, bundle.manifest.special_ids)
        for stepper in (OnnxStepper(bundle, "fp32"), TorchStepper(run.model))
    )
    assert [one[0].token_ids for one in found] == [one[0].token_ids for one in wanted]


def test_it_pronounces(bundle: Bundle) -> None:
    found = decode_all(OnnxStepper(bundle, "int8"), sources(bundle), OPTIONS, bundle.manifest.special_ids)
    texts = [bundle.target_tokenizer.decode(one[0].token_ids) for one in found]
    assert dict(zip(WORDS, texts, strict=True))["attention"] == "AH T EH N SH AH N"
    assert dict(zip(WORDS, texts, strict=True))["phoneme"] == "F OW N IY M"
