"""A bundle of every format that was ever written, byte for byte as it was: this version reads them all."""

from pathlib import Path

import pytest

from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.bundle.manifest import FORMAT_VERSION
from attendant.runtime.bundle_stepper import check_decoding
from attendant.runtime.onnx.stepper import OnnxStepper
from tests.paths import ROOT

KEPT = ROOT / "tests" / "bundle_formats"


def test_one_of_each_is_kept() -> None:
    assert {path.name for path in KEPT.iterdir()} == {str(number) for number in range(1, FORMAT_VERSION + 1)}


@pytest.mark.parametrize("path", sorted(KEPT.iterdir()), ids=lambda path: f"format {path.name}")
def test_it_is_opened_and_decodes_as_it_did(path: Path) -> None:
    bundle = open_bundle(path)
    assert str(bundle.manifest.format_version) == path.name
    assert not check_decoding(bundle, OnnxStepper(bundle, num_threads=1), "fp32", "cpu")
