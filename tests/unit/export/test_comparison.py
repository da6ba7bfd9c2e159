"""What counts as an error, and as a change by company."""

import numpy as np
import pytest

from export.comparison import Agreement, relative_error


@pytest.mark.parametrize(
    ("value", "reference", "error"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([0.5], [0.25], 0.25),
        ([110.0], [100.0], 0.1),
        ([True], [False], 1.0),
        ([float("nan")], [1.0], float("inf")),
        ([1.0], [float("nan")], float("inf")),
        ([1.0], [1.0, 1.0], float("inf")),
        ([], [], 0.0),
    ],
)
def test_errors_are_relative_to_what_is_large_and_never_hidden(
    value: list[float], reference: list[float], error: float
) -> None:
    assert relative_error(np.array(value), np.array(reference)) == pytest.approx(error)


def test_the_worst_place_is_named_and_steps_are_taken_together() -> None:
    agreement = Agreement()
    zero, some, more = np.zeros(2), np.full(2, 0.25), np.full(2, 0.5)
    agreement.compare(
        [{"encoder/memory": zero, "step 1/hidden": some}], [{"encoder/memory": zero, "step 1/hidden": zero}], "alone"
    )
    agreement.compare([{"step 2/hidden": more}], [{"step 2/hidden": zero}], "in a batch of 3")
    assert agreement.largest_errors() == {"encoder/memory": 0.0, "step/hidden": 0.5}
    assert agreement.differences(lambda name: 0.1, must_be_invariant=True) == [
        "step/hidden: off by 0.5 (step 2, in a batch of 3); allowed is 0.1"
    ]


def test_a_tensor_that_one_side_lacks_is_an_error() -> None:
    agreement = Agreement()
    agreement.compare([{}], [{"encoder/memory": np.zeros(1)}], "alone")
    assert agreement.largest_errors() == {"encoder/memory": float("inf")}


def test_one_bit_is_seen() -> None:
    agreement = Agreement()
    value = np.ones(3, np.float32)
    agreement.compare_bits([{"encoder/memory": value}], [{"encoder/memory": value.copy()}], "in a batch of 2")
    assert not agreement.variations
    agreement.compare_bits([{"encoder/memory": value}], [{"encoder/memory": np.nextafter(value, 2)}], "in a batch of 3")
    assert agreement.differences(lambda name: 1.0, must_be_invariant=False) == []
    assert agreement.differences(lambda name: 1.0, must_be_invariant=True) == [
        "encoder/memory: not the same bits alone and in company (encoder, in a batch of 3)"
    ]
