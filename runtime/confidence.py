"""The confidence of an answer: the probability that it is right, by the calibration in its bundle.

Signals of the answer and of its source are weighted and added up to a score, and the calibration has the share of right
answers at each score among held-out ones, by isotonic regression (Zadrozny and Elkan 2002). An answer with a signal
beyond the limits of the calibration is unlike all held-out answers, and gets the lowest confidence.

No signal needs attention weights, or other values that the search does not compute anyway.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from attendant.runtime.bundle.bigrams import SeenBigrams
from attendant.runtime.bundle.manifest import Calibration, ConfidenceSignal
from attendant.runtime.bundle.tokenizer import UNK_ID
from attendant.runtime.decoding.hypothesis import Hypothesis

LEAST_SURPRISE: Final = 1e-5  # Added to a surprise, whose logarithm would be infinite for a probability of 1.

Signals = dict[ConfidenceSignal, float]


def source_signals(source_ids: Sequence[int], seen: SeenBigrams | None) -> Signals:
    """Returns the signals that depend on the source alone.

    Args:
        source_ids: without EOS; at least one.
        seen: the bigrams of the training sources; if None, there is no `unseen_ratio`.
    """
    signals: Signals = {"source_tokens": len(source_ids), "unknown_ratio": source_ids.count(UNK_ID) / len(source_ids)}
    if seen is not None:
        signals["unseen_ratio"] = seen.unseen_share(source_ids)
    return signals


def answer_signals(of_source: Signals, hypothesis: Hypothesis) -> Signals:
    """Returns all signals of an answer.

    The surprise of a token is its negative log-probability. The signals are the logarithms of the mean, the highest and
    the sum of the surprises, and of the ratio of the lengths.
    """
    log_probs = hypothesis.token_log_probs or (0.0,)
    return of_source | {
        "mean_surprise": _logarithm(-hypothesis.log_prob / len(log_probs)),
        "highest_surprise": _logarithm(-min(log_probs)),
        "total_surprise": _logarithm(-hypothesis.log_prob),
        "length_ratio": math.log((len(hypothesis.token_ids) + 1) / (of_source["source_tokens"] + 1)),
    }


def _logarithm(surprise: float) -> float:
    return math.log(max(surprise, 0.0) + LEAST_SURPRISE)


def confidence_of(signals: Signals, calibration: Calibration) -> float:
    """Returns the probability that an answer with these signals is right."""
    score = 0.0
    for name, term in calibration.signals.items():
        value = signals[name]
        if (term.low is not None and value < term.low) or (term.high is not None and value > term.high):
            return calibration.probabilities[0]
        score += term.weight * value
    return interpolated(score, calibration.scores, calibration.probabilities)


def interpolated(score: float, scores: Sequence[float], probabilities: Sequence[float]) -> float:
    """Returns the probability at a score: linear between two scores, constant beyond the first and the last."""
    place = bisect_right(scores, score)
    if place == 0 or place == len(scores):
        return probabilities[max(0, place - 1)]
    low, high = scores[place - 1], scores[place]
    share = (score - low) / (high - low)
    return probabilities[place - 1] + share * (probabilities[place] - probabilities[place - 1])
