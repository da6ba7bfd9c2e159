"""The default unit and bins of source lengths."""

from collections.abc import Sequence

import numpy as np

from attendant.training.data.pairs import num_words
from attendant.training.evaluation.lengths import DEFAULT_EDGES, LengthUnit

WIDTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
MAX_BINS = 8
TAIL = 1.0
"""Per cent of the examples that the first and the last bin take in at least, so that neither hangs on a handful."""

FEW_WORDS = 3


def natural_unit(sources: Sequence[str]) -> LengthUnit:
    """What lengths are counted in: words, or tokens where most sources are only one or two words."""
    return "words" if float(np.median([num_words(source) for source in sources])) >= FEW_WORDS else "tokens"


def natural_edges(lengths: Sequence[int]) -> tuple[int, ...]:
    """Where bins of a round width end, at most MAX_BINS, that suit the lengths.

    Lengths that suit the usual bins get those, in which papers report translation.
    """
    low, high = (round(float(length)) for length in np.percentile(lengths, [TAIL, 100 - TAIL]))
    if DEFAULT_EDGES[2] < high <= DEFAULT_EDGES[-1]:
        return tuple(edge for edge in DEFAULT_EDGES if edge < high)
    width = next((width for width in WIDTHS if (high - low) / width <= MAX_BINS - 1), WIDTHS[-1])
    first = max(1, -(-low // width)) * width
    return tuple(range(first, max(first + 1, high), width))
