"""What an answer says of itself without a reference, how that is distributed on held-out texts, and how far another
distribution is from it.

    PSI = sum over bins of (observed - expected) ln(observed / expected)

the population stability index, by the rule of thumb of credit scoring: below 0.1 nothing, above 0.25 a shift.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, get_args

import numpy as np

from attendant.runtime.bundle.manifest import Distribution, Reference, Signal
from attendant.runtime.bundle.tokenizer import UNK_ID
from attendant.runtime.decoding.hypothesis import FinishReason, Hypothesis

SIGNALS: Final[tuple[Signal, ...]] = get_args(Signal)

NUM_BINS: Final = 10
PRIOR: Final = 0.5
"""Answers that every bin is thought to have had: a bin that has had none is rare, not impossible."""

HALF_LIFE: Final = 1000
"""Answers after which one counts half."""

MIN_ANSWERS: Final = 200
"""With fewer the index is noise: without any shift it is about (bins - 1) / answers."""


def signals_of(source_ids: Sequence[int], num_source_tokens: int, best: Hypothesis) -> tuple[float, ...]:
    """Of one answer, in the order of SIGNALS.

    Args:
        source_ids: as the encoder took them.
        num_source_tokens: without the end symbol.
    """
    return (
        num_source_tokens,
        source_ids.count(UNK_ID) / num_source_tokens,
        len(best.token_ids) / num_source_tokens,
        best.log_prob / max(1, len(best.token_log_probs)),
        best.finish_reason is FinishReason.LENGTH,
    )


def distribution_of(values: Sequence[float]) -> Distribution:
    """Bins of equal shares, as far as equal values allow, and one for what is larger than all."""
    quantiles = np.quantile(values, np.arange(1, NUM_BINS) / NUM_BINS, method="inverted_cdf")
    edges = tuple(float(f"{edge:.6g}") for edge in np.unique(quantiles))
    counts = np.bincount([bisect_left(edges, value) for value in values], minlength=len(edges) + 1)
    return Distribution(edges=edges, shares=tuple(round(float(share), 6) for share in counts / len(values)))


def stability_index(distribution: Distribution, num_expected: float, observed: Sequence[float]) -> float:
    """The index of the counts in the distribution's bins against its shares of `num_expected` examples."""
    num_bins, num_observed = len(observed), sum(observed)
    found = 0.0
    for share, count in zip(distribution.shares, observed, strict=True):
        expected = (share * num_expected + PRIOR) / (num_expected + PRIOR * num_bins)
        seen = (count + PRIOR) / (num_observed + PRIOR * num_bins)
        found += (seen - expected) * math.log(seen / expected)
    return found


class DriftWatch:
    """Recent answers in the bins of a reference. Memory does not grow, and an answer costs some microseconds."""

    def __init__(self, reference: Reference, half_life: int = HALF_LIFE) -> None:
        self._reference = reference
        self._edges = [reference.signals[name].edges for name in SIGNALS]
        self._counts = [[0.0] * (len(edges) + 1) for edges in self._edges]
        # Later answers weigh more instead of earlier ones less: one addition, and not one per bin.
        self._growth = 2.0 ** (1 / half_life)
        self._weight = 1.0
        self._num_answers = 0

    def add(self, signals: Sequence[float]) -> None:
        """An answer's, in the order of SIGNALS."""
        for value, edges, counts in zip(signals, self._edges, self._counts, strict=True):
            counts[bisect_left(edges, value)] += self._weight
        self._num_answers += 1
        self._weight *= self._growth
        if self._weight > 1e100:
            self._counts = [[count / self._weight for count in counts] for counts in self._counts]
            self._weight = 1.0

    def index(self, signal: Signal) -> float:
        """The population stability index of recent answers; NaN before there are enough."""
        if self._num_answers < MIN_ANSWERS:
            return math.nan
        scale = self._weight / self._growth
        counts = [count / scale for count in self._counts[SIGNALS.index(signal)]]
        return stability_index(self._reference.signals[signal], self._reference.num_examples, counts)
