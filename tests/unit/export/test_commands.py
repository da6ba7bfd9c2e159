"""What an export says at its end."""

from attendant.export.commands import summaries
from attendant.runtime.bundle.bundle import open_bundle
from tests.paths import ROOT

BUNDLE = ROOT / "models" / "g2p-en"


def test_what_an_error_is_relative_to_and_what_it_means() -> None:
    fp32, int8 = [line for line in summaries(BUNDLE, open_bundle(BUNDLE)) if "decodings" in line]
    assert "identical to PyTorch's, largest error of a tensor " in fp32
    assert "identical to the fp32 graphs', a tensor's value up to " in int8
    assert int8.endswith(" from theirs by rounding: what that costs shows in the quality")
