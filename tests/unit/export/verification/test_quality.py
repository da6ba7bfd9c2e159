"""What int8 may cost to be served by default."""

import pytest

from attendant.export.verification.quality import losses, preferred_precision, too_costly
from attendant.runtime.bundle.manifest import Evaluation, Precision


def entry(metric: str, precision: Precision, difference: float | None) -> Evaluation:
    return Evaluation(
        metric=metric, value=30.0, protocol="test", num_examples=9, precision=precision, difference=difference
    )


@pytest.mark.parametrize(
    ("metric", "difference", "expected"),
    [
        ("bleu", -0.15, "int8"),
        ("bleu", -0.16, "fp32"),
        ("bleu", 2.0, "int8"),
        ("wer", 0.2, "int8"),
        ("wer", 0.21, "fp32"),
        ("wer", -2.0, "int8"),
    ],
)
def test_int8_is_preferred_where_it_costs_little(metric: str, difference: float, expected: str) -> None:
    measured = [entry(metric, "fp32", None), entry(metric, "int8", difference), entry("per", "int8", 0.0)]
    assert preferred_precision(measured) == expected


def test_what_was_not_measured_is_not_preferred() -> None:
    assert preferred_precision([entry("bleu", "fp32", None)]) == "fp32"
    assert losses([entry("wer", "int8", 0.1), entry("bleu", "int8", 0.1)]) == {"wer": 0.1, "bleu": -0.1}


def test_what_costs_too_much_is_named_with_what_it_may_cost() -> None:
    measured = [entry("bleu", "int8", -0.13), entry("chrf", "int8", -0.2), entry("wer", "int8", 0.3)]
    assert too_costly(measured) == {"chrf": 0.15, "wer": 0.2}
    assert preferred_precision(measured) == "fp32"
