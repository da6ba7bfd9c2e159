"""Tests of the fit of confidence on synthetic answers and against slow reference definitions."""

import numpy as np
import pytest

from attendant.export.calibration import FOREIGN_SHARE, fit, isotonic_blocks, logistic_weights, warning_level
from attendant.runtime.bundle.manifest import Calibration, RightRule
from attendant.runtime.confidence import Signals, confidence_of
from attendant.training.evaluation.confidence import reliability
from attendant.training.evaluation.metrics import Floats64


def sigmoid(values: Floats64) -> Floats64:
    return np.asarray(1 / (1 + np.exp(-values)))


def planted(count: int, seed: int, *, unseen: float = 0.1) -> tuple[list[Signals], Floats64]:
    """Returns answers of an overconfident model, and the true probability that each is right."""
    random = np.random.default_rng(seed)
    mean = random.gamma(1.0, 0.1, count)
    novel = random.random(count) * unseen
    signals: list[Signals] = [
        {
            "mean_surprise": float(np.log(a)),
            "highest_surprise": float(np.log(3 * a + random.random() / 10)),
            "total_surprise": float(np.log(10 * a)),
            "length_ratio": float(random.random() / 10),
            "source_tokens": float(random.integers(4, 12)),
            "unknown_ratio": 0.0,
            "unseen_ratio": float(b),
        }
        for a, b in zip(mean, novel, strict=True)
    ]
    return signals, sigmoid(-2.0 - 1.5 * np.log(mean) - 10.0 * novel)


def calibrated(own: list[Signals], is_right: np.ndarray, foreign: list[Signals]) -> Calibration:
    terms, table = fit(own, is_right, foreign)
    scores, probabilities = zip(*table, strict=True)
    return Calibration(
        right=RightRule(metric="exact_match", at_least=100),
        data="planted",
        num_examples=len(own),
        precision="fp32",
        signals=terms,
        scores=scores,
        probabilities=probabilities,
        warn_below=0.5,
    )


FOREIGN = [signals | {"unseen_ratio": 0.9} for signals in planted(300, seed=9)[0]]


def test_confidence_of_new_answers_is_the_probability_that_they_are_right() -> None:
    own, truth = planted(6000, seed=1)
    calibration = calibrated(own, np.random.default_rng(2).random(6000) < truth, FOREIGN)
    new, truth = planted(6000, seed=3)
    is_right = np.random.default_rng(4).random(6000) < truth
    confidences = np.array([confidence_of(signals, calibration) for signals in new])
    result = reliability(confidences, is_right, rule="", warn_below=0.5, num_resamples=0)
    assert result.ece.value is not None and result.ece.value < 0.03
    assert np.abs(confidences - truth).mean() < 0.03
    # The model's own probabilities are far off, so this test can fail.
    own_view = np.exp([-np.exp(signals["mean_surprise"]) for signals in new])
    assert (raw := reliability(own_view, is_right, rule="", warn_below=0.5, num_resamples=0).ece.value) and raw > 0.15


def test_inputs_unlike_all_held_out_ones_have_the_lowest_confidence() -> None:
    own, truth = planted(3000, seed=1)
    calibration = calibrated(own, np.random.default_rng(2).random(3000) < truth, FOREIGN)
    sure: Signals = own[int(np.argmax(truth))]
    assert confidence_of(sure, calibration) > 0.8
    for unlike in ({"unseen_ratio": 0.5}, {"unknown_ratio": 0.1}, {"source_tokens": 40.0}, {"length_ratio": 3.0}):
        outside: Signals = {**sure, **unlike}
        assert confidence_of(outside, calibration) == calibration.probabilities[0] < 0.1
    # Lower surprise than on all held-out sources does not lower the confidence.
    assert confidence_of(sure | {"mean_surprise": -11.0, "highest_surprise": -11.0}, calibration) > 0.8


def test_texts_of_one_length_with_answers_of_one_length_are_not_unlike_the_held_out_ones() -> None:
    own, truth = planted(300, seed=1)
    for ratio in (np.log(9 / 11), np.log(13 / 11)):
        same: list[Signals] = [{**signals, "length_ratio": float(ratio)} for signals in own]
        calibration = calibrated(same, np.random.default_rng(2).random(300) < truth, FOREIGN)
        assert confidence_of(same[int(np.argmax(truth))], calibration) > 0.7


def test_the_isotonic_regression_is_the_min_max_formula() -> None:
    random = np.random.default_rng(5)
    for _ in range(40):
        count = int(random.integers(1, 25))
        scores = random.integers(0, 15, count).astype(np.float64)
        is_right, importance = random.random(count) < 0.5, random.random(count) + 0.1
        blocks = isotonic_blocks(scores, is_right, importance)
        shares = [block.share_right for block in blocks]
        assert shares == sorted(set(shares)) and sum(block.weight for block in blocks) == pytest.approx(
            importance.sum()
        )
        values = np.unique(scores)

        def mean(low: float, high: float) -> float:
            inside = (scores >= low) & (scores <= high)  # noqa: B023
            return float(np.average(is_right[inside], weights=importance[inside]))  # noqa: B023

        for place, value in enumerate(values):
            expected = max(min(mean(low, high) for high in values[place:]) for low in values[: place + 1])
            assert min(shares, key=lambda share: abs(share - expected)) == pytest.approx(expected), value


def test_logistic_weights_are_the_planted_ones() -> None:
    random = np.random.default_rng(6)
    features = random.normal(size=(40_000, 2)) * [1.0, 30.0]
    is_right = random.random(40_000) < sigmoid(0.7 + features @ [1.5, -0.05])
    assert logistic_weights(features, is_right, np.ones(40_000)) == pytest.approx([1.5, -0.05], rel=0.05)


def test_foreign_inputs_count_by_their_assumed_share() -> None:
    own, _ = planted(1000, seed=1)
    same = [own[0]] * 1000
    _, table = fit(same, np.ones(1000, np.bool_), same[:10])
    assert table[-1][1] == pytest.approx(1 - FOREIGN_SHARE, abs=0.002)


def test_the_lowest_twentieth_gets_a_warning_but_no_likely_right_answer() -> None:
    spread = [place / 100 for place in range(100)]
    assert warning_level(spread, 0.0) == 0.04
    assert warning_level([0.9 + value / 20 for value in spread], 0.1) == 0.5
    # Inputs unlike all others have the lowest confidence and always get a warning.
    assert warning_level([0.01] * 20 + [0.3] * 80, 0.01) == 0.3
    assert warning_level([0.01] * 20, 0.01) == 0.5
