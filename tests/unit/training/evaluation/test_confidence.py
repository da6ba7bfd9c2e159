"""Tests of measures of confidence, against slow definitions, and of their intervals."""

import itertools

import numpy as np
import pytest

from attendant.runtime.bundle.manifest import RightRule
from attendant.training.evaluation.confidence import auroc, reliability, right_rule


def test_the_area_is_the_share_of_pairs_in_the_right_order_with_half_of_ties() -> None:
    random = np.random.default_rng(1)
    for _ in range(30):
        count = int(random.integers(2, 20))
        scores = random.integers(0, 6, count) / 5
        is_positive, counts = random.random(count) < 0.5, random.integers(0, 3, (3, count)).astype(np.float64)
        for row, area in zip(counts, auroc(scores, is_positive, counts), strict=True):
            above, pairs = 0.0, 0.0
            for a, b in itertools.product(np.flatnonzero(is_positive), np.flatnonzero(~is_positive)):
                pairs += row[a] * row[b]
                above += row[a] * row[b] * (1.0 if scores[a] > scores[b] else 0.5 if scores[a] == scores[b] else 0.0)
            assert (np.isnan(area) and not pairs) or area == pytest.approx(above / pairs)


def test_the_calibration_error_is_the_mean_gap_of_the_bins() -> None:
    confidences = np.array([0.05, 0.05, 0.95, 0.95, 1.0, 0.0])
    is_right = np.array([False, True, True, True, False, False])
    result = reliability(confidences, is_right, rule="r", warn_below=0.5, num_resamples=0)
    low, high = abs(0.1 - 1) / 6, abs(2.9 - 2) / 6
    assert result.ece.value == pytest.approx(low + high, abs=1e-4) and result.ece.interval is None
    first, last = result.bins
    assert (first.low, first.num_answers, first.share_right.value) == (0.0, 3, pytest.approx(1 / 3, abs=1e-4))
    assert (last.high, last.num_answers, last.confidence) == (1.0, 3, pytest.approx(2.9 / 3, abs=1e-4))
    assert (result.warned.value, result.warned_of_wrong.value) == (0.5, pytest.approx(2 / 3, abs=1e-4))


def test_calibrated_confidences_have_less_error_than_shifted_ones() -> None:
    random = np.random.default_rng(2)
    truth = random.random(4000)
    is_right = random.random(4000) < truth
    calibrated = reliability(truth, is_right, rule="r", warn_below=0.5, num_resamples=100)
    shifted = reliability(truth**0.3, is_right, rule="r", warn_below=0.5, num_resamples=100)
    assert calibrated.ece.value is not None and calibrated.ece.value < 0.03
    assert shifted.ece.value is not None and shifted.ece.value > 0.2
    assert shifted.auroc.value == calibrated.auroc.value, "the order is the same"
    interval = calibrated.auroc.interval
    assert interval is not None and interval.low < calibrated.auroc.value < interval.high < interval.low + 0.05


def test_foreign_inputs_are_compared_with_right_answers_only() -> None:
    confidences, is_right = np.array([0.9, 0.8, 0.3]), np.array([True, True, False])
    foreign = [("low", np.array([0.1, 0.2])), ("high", np.array([0.85, 1.0]))]
    result = reliability(confidences, is_right, rule="r", warn_below=0.5, foreign=foreign, num_resamples=50)
    low, high = result.foreign
    assert (low.warned.value, low.auroc.value, low.num_in_bins[:3]) == (1.0, 1.0, (0, 1, 1))
    assert (high.warned.value, high.auroc.value, high.num_in_bins[8:]) == (0.0, 0.25, (1, 1))


def test_measures_without_wrong_answers_are_none() -> None:
    result = reliability(np.array([0.9, 0.8]), np.array([True, True]), rule="r", warn_below=0.5, num_resamples=20)
    assert result.auroc.value is None and result.auroc.interval is None
    assert result.warned_of_wrong.value is None
    assert result.share_right.value == 1.0


@pytest.mark.parametrize(
    ("metrics", "at_least", "rule"),
    [
        (("wer", "per"), None, "exact match"),
        (("perplexity", "exact_match"), 40.0, "exact match"),
        (("bleu", "chrf"), None, "chrf of at least 60"),
        (("bleu",), 70.0, "chrf of at least 70"),
        (("rouge_l", "rouge_1"), None, "rouge_l of at least 40"),
        (("perplexity",), None, "exact match"),
    ],
)
def test_the_rule_follows_the_first_metric_of_outputs(
    metrics: tuple[str, ...], at_least: float | None, rule: str
) -> None:
    chosen = right_rule(metrics, at_least)
    assert isinstance(chosen, RightRule) and str(chosen) == rule
