"""Confidence intervals of metrics, by source length too, and of the difference of two systems, by bootstrap resampling
of the test set (Koehn 2004).

A test set is a sample. Drawn again from itself with replacement, R times, it gives R values of the metric, and the
middle 95 % of them are the interval. A resample is a number of times that each example counts. So with the metric's
sufficient statistics (training/evaluation/metrics.py) R values cost one product of matrices, [R, N] x [N, F].

The draws depend on N and the seed alone. Two systems on the same examples get the same resamples, so their comparison
is a paired one (section 4).
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from attendant.training.evaluation.metrics import Floats64, Statistics

DEFAULT_RESAMPLES = 1000
MAX_RESAMPLES = 1_000_000  # More would take hours, and change no digit that is shown.
CONFIDENCE = 0.95
SEED = 12345
MIN_EXAMPLES = 2  # With fewer there is no interval.
LARGE = 1e6  # From this value on, decimals have no meaning.
BLOCK_COUNTS = 2**21  # Counts in memory at once, 16 MB of them, for test sets of any size.


@dataclass(frozen=True, slots=True)
class Interval:
    """The bounds within which 95 % of the resampled values lie."""

    low: float
    high: float


def value_text(value: float, digits: int = 2, sign: str = "") -> str:
    """Returns a value with `digits` decimals; in powers of ten if it is large, as perplexities per word may be.

    Args:
        sign: "+" also shows that a value is positive.
    """
    return f"{value:{sign}.{digits}f}" if abs(value) < LARGE else f"{value:{sign}.3g}"


def interval_text(interval: Interval | None, digits: int = 2) -> str:
    return "" if interval is None else f"{value_text(interval.low, digits)} to {value_text(interval.high, digits)}"


def confidence_interval(statistics: Statistics, num_resamples: int = DEFAULT_RESAMPLES) -> Interval | None:
    """Returns the percentile interval of a metric; None if `num_resamples` is 0 or there is a single example.

    All resamples of a single example are equal: they would give an interval without width.
    """
    if not num_resamples or len(statistics.rows) < MIN_EXAMPLES:
        return None
    return percentiles(resampled_values(statistics, num_resamples))


def resampled_values(statistics: Statistics, num_resamples: int) -> Floats64:
    """Returns [R] the metric of each resample."""
    return np.array([statistics.value_of(totals) for totals in resampled_totals(statistics.rows, num_resamples)])


def resampled_totals(rows: Floats64, num_resamples: int) -> Floats64:
    """Returns [R, F] the sums of the statistics [N, F] over each resample of N examples."""
    return np.concatenate([counts @ rows for counts in resampled_counts(len(rows), num_resamples)])


def resampled_counts(num_examples: int, num_resamples: int) -> Iterator[Floats64]:
    """Yields [r, N] how often each example counts in each resample, in blocks of r resamples."""
    generator = np.random.default_rng(SEED)
    block = max(1, BLOCK_COUNTS // num_examples)
    for start in range(0, num_resamples, block):
        counts = np.empty((min(block, num_resamples - start), num_examples))
        for drawn in counts:
            drawn[:] = np.bincount(generator.integers(num_examples, size=num_examples), minlength=num_examples)
        yield counts


def percentiles(values: Floats64) -> Interval:
    """Returns the interval of resampled values [R]."""
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(values, [tail, 100 - tail])
    return Interval(round(float(low), 4), round(float(high), 4))


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A metric of one system minus that of a baseline, on the same examples.

    Attributes:
        interval: interval of the difference. If it does not contain 0, chance hardly explains the difference. None
            without resamples, or of a single example.
        p_value: the probability that resampling gives a difference at least as large if there is none: the share of
            resamples that are as far from their mean (Riezler and Maxwell 2005), to either side. sacrebleu's paired
            bootstrap counts one side, and so prints about half of it if it is small.
    """

    metric: str
    value: float
    interval: Interval | None
    p_value: float | None


def compare(system: Statistics, baseline: Statistics, num_resamples: int = DEFAULT_RESAMPLES) -> Difference:
    """Returns the difference of two systems. Raises ValueError: they have different metrics or numbers of examples.

    Args:
        system, baseline: statistics of the same examples in the same order.
    """
    if (system.metric, len(system.rows)) != (baseline.metric, len(baseline.rows)):
        raise ValueError("only one metric of the same examples can be compared")
    value = system.value - baseline.value
    interval, p_value = None, None
    if num_resamples and len(system.rows) >= MIN_EXAMPLES:
        differences = resampled_values(system, num_resamples) - resampled_values(baseline, num_resamples)
        as_far = np.abs(differences - differences.mean()) >= abs(value)
        interval, p_value = percentiles(differences), round((int(as_far.sum()) + 1) / (num_resamples + 1), 4)
    return Difference(metric=system.metric, value=round(value, 4), interval=interval, p_value=p_value)


LengthUnit = Literal["words", "tokens"]
"""Unit of a source's length: words and punctuation marks, which are the same for every model, or the tokens
of the model's own tokenizer, EOS not among them."""

DEFAULT_EDGES = (10, 20, 30, 40, 50, 60, 80)
"""The longest length of each bin but the last, which has no end: 1-10, 11-20, ..., 61-80, 81 and more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthBin:
    """A metric of the examples with sources of `low` to `high` length, both included; None is without limit."""

    low: int
    high: int | None
    num_examples: int
    value: float
    interval: Interval | None

    @property
    def name(self) -> str:
        return f"{self.low}-{self.high}" if self.high is not None else f"{self.low}+"


def by_length(
    statistics: Statistics,
    lengths: Sequence[int],
    edges: Sequence[int] = DEFAULT_EDGES,
    *,
    num_resamples: int = DEFAULT_RESAMPLES,
) -> tuple[LengthBin, ...]:
    """Returns the metric in each bin of lengths, without empty bins.

    Args:
        lengths: one per example of `statistics`.
        edges: rising; the last length of each bin but the last.
    """
    places = np.array([bisect_left(edges, length) for length in lengths])
    bins = []
    for place in range(len(edges) + 1):
        inside = np.flatnonzero(places == place)
        if not len(inside):
            continue
        part = replace(statistics, rows=statistics.rows[inside])
        bins.append(
            LengthBin(
                low=edges[place - 1] + 1 if place else 1,
                high=edges[place] if place < len(edges) else None,
                num_examples=len(inside),
                value=round(part.value, 4),
                interval=confidence_interval(part, num_resamples),
            )
        )
    return tuple(bins)
