"""Which stepper serves, and what is refused."""

from pathlib import Path

import pytest

from attendant.runtime.bundle.bundle import Bundle, open_bundle
from attendant.runtime.bundle_stepper import open_stepper
from attendant.runtime.device.stepper import DeviceStepper
from attendant.runtime.errors import UserError
from attendant.runtime.onnx.stepper import OnnxStepper


@pytest.fixture
def bundle(tiny_bundle_path: Path) -> Bundle:
    return open_bundle(tiny_bundle_path)


def with_precision(bundle: Bundle, precision: str) -> Bundle:
    """The bundle as if its fp32 graphs were of another precision, too."""
    graphs = {**bundle.manifest.graphs, precision: bundle.manifest.graphs["fp32"]}
    manifest = bundle.manifest.model_copy(update={"graphs": graphs})
    return Bundle(
        path=bundle.path,
        manifest=manifest,
        source_tokenizer=bundle.source_tokenizer,
        target_tokenizer=bundle.target_tokenizer,
        golden=bundle.golden,
    )


def test_the_cpu_has_its_own(bundle: Bundle) -> None:
    assert isinstance(open_stepper(bundle), OnnxStepper)


def test_fp16_is_refused_on_the_cpu_with_the_reason(bundle: Bundle) -> None:
    with pytest.raises(
        UserError, match=r"precision fp16 is not served on cpu: .* several times slower .*; choose precision fp32$"
    ):
        open_stepper(with_precision(bundle, "fp16"), "fp16")


def test_int8_is_refused_on_cuda_with_the_reason(bundle: Bundle) -> None:
    with pytest.raises(
        UserError, match=r"precision int8 is not served on cuda: .* CPU kernels only.*; choose precision fp32$"
    ):
        open_stepper(with_precision(bundle, "int8"), "int8", "cuda")


@pytest.mark.parametrize("precision", ["int8", "fp16"])
def test_a_precision_that_is_not_there_is_said_to_be_missing(bundle: Bundle, precision: str) -> None:
    with pytest.raises(UserError, match=f"precision {precision} is not in the bundle tiny; it has fp32"):
        open_stepper(bundle, precision)  # type: ignore[arg-type]


def test_cuda_keeps_the_state_there_or_is_missing(bundle: Bundle) -> None:
    try:
        stepper = open_stepper(bundle, provider="cuda")
    except UserError as refusal:
        assert str(refusal).startswith("provider cuda is not available here: ")
    else:
        assert isinstance(stepper, DeviceStepper)
