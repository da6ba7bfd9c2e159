"""A metric by the length of the source (Bahdanau et al. 2015, fig. 2): does quality fall where texts are long?"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from attendant.training.data.pairs import num_words
from attendant.training.evaluation.bootstrap import DEFAULT_RESAMPLES, Interval, confidence_interval
from attendant.training.evaluation.decoding import Decoded, TextModel
from attendant.training.evaluation.metrics import Statistics

LengthUnit = Literal["words", "tokens"]
"""What a source's length is counted in: words and punctuation marks, which are the same for every model, or the tokens
of the model's own tokenizer, EOS not among them."""

DEFAULT_EDGES = (10, 20, 30, 40, 50, 60, 80)
"""The longest length of each bin but the last, which has no end: 1-10, 11-20, ..., 61-80, 81 and more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthBin:
    """A metric of the examples whose source is `low` to `high` long, both included; `high` None: and more."""

    low: int
    high: int | None
    num_examples: int
    value: float
    interval: Interval | None

    @property
    def name(self) -> str:
        return f"{self.low}-{self.high}" if self.high is not None else f"{self.low}+"


def source_lengths(model: TextModel, decoded: Sequence[Decoded], unit: LengthUnit = "words") -> list[int]:
    """The length of each example's source."""
    if unit == "words":
        return [num_words(one.example.source) for one in decoded]
    return [max(0, len(one.source_ids) - model.append_eos) for one in decoded]


def by_length(
    statistics: Statistics,
    lengths: Sequence[int],
    edges: Sequence[int] = DEFAULT_EDGES,
    *,
    num_resamples: int = DEFAULT_RESAMPLES,
) -> tuple[LengthBin, ...]:
    """The metric in each bin of lengths. A bin without examples is left out.

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
        part = statistics.take(inside)
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
