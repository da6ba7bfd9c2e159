"""What counts as an error, and as a change by batch-mates."""

import numpy as np
import pytest

from attendant.export.verification.certification import Agreement, distance, relative_error


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
    assert agreement.differences(lambda name: 0.1) == [
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
    assert agreement.differences(lambda name: 1.0) == []
    assert agreement.variation_lines() == [
        "encoder/memory: not the same bits alone and with batch-mates (encoder, in a batch of 3)"
    ]


def test_a_distance_is_a_share_of_that_between_sources_at_the_worst_step() -> None:
    references = [
        {"step 1/log_probs": np.full((2, 3), -value), "step 2/log_probs": np.full((2, 3), -2 * value)}
        for value in (1.0, 3.0, 1.0)
    ]
    traces = [{key: values + 0.1 for key, values in reference.items()} for reference in references]
    assert distance("log_probs", references, references) == 0.0
    assert distance("log_probs", traces, references) == pytest.approx(0.05)
    traces[0] = {**traces[0], "step 2/log_probs": np.full((2, 3), -14.0)}
    assert distance("log_probs", traces, references) == pytest.approx((12 + 0.1 + 0.1) / 3 / 4)
    traces[0] = {**traces[0], "step 1/log_probs": np.full((2, 3), np.nan)}
    assert distance("log_probs", traces, references) == np.inf


def test_what_is_impossible_has_no_distance() -> None:
    references = [{"step 1/log_probs": np.array([[-1.0, -1e9]])}, {"step 1/log_probs": np.array([[-2.0, -4.0]])}]
    traces = [{"step 1/log_probs": np.array([[-1.5, -1e9]])}, {"step 1/log_probs": np.array([[-2.5, -4.5]])}]
    assert distance("log_probs", traces, references) == pytest.approx(0.5)
