"""How long a target may become for its source: a bound that the training split suggests.

Shapes: N pairs.
"""

import math
from typing import Final

import numpy as np

from attendant.training.data.corpus import Corpus

ALLOWED_TOKENS: Final = 10
"""What any target may have beyond its source's share: ratios of short texts scatter too widely to bound anything."""

COVERED_SHARE: Final = 0.999


def max_length_ratio(corpus: Corpus, *, append_eos: bool) -> float:
    """The ratio r of the bound `target tokens <= r * source tokens + ALLOWED_TOKENS`, rounded up to two decimals.

    It is the smallest one that holds for 99.9 % of the pairs, but never below the mean ratio of all tokens: sources
    that are longer than any of the training split must not be cut below what is usual.

    Args:
        corpus: the training split, N > 0 pairs.
        append_eos: whether its sources end with EOS, which does not count.
    """
    sources = corpus.sources.lengths - append_eos
    targets = corpus.targets.lengths
    ratios = (targets - ALLOWED_TOKENS) / sources
    covering = float(np.quantile(ratios, COVERED_SHARE, method="inverted_cdf"))
    mean = int(targets.sum()) / int(sources.sum())
    return math.ceil(100 * max(covering, mean)) / 100
