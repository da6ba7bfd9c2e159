"""The bound that a training split suggests for the length of outputs."""

import numpy as np
import pytest

from attendant.runtime.decoding.options import LENGTH_MARGIN
from attendant.training.data.corpus import Corpus, TokenSequences, max_length_ratio


def corpus(sources: list[int], targets: list[int], *, append_eos: bool) -> Corpus:
    sides = [[[4] * (length + append_eos) for length in sources], [[4] * length for length in targets]]
    return Corpus(*(TokenSequences.of(side) for side in sides), num_too_long=0)


@pytest.mark.parametrize("append_eos", [True, False])
def test_is_the_smallest_that_covers_all_but_one_in_a_thousand(append_eos: bool) -> None:
    random = np.random.default_rng(0)
    sources = random.integers(1, 40, 2000)
    targets = np.maximum(1, (sources * random.gamma(8, 0.25, 2000)).astype(int))
    found = max_length_ratio(corpus(sources.tolist(), targets.tolist(), append_eos=append_eos), append_eos=append_eos)

    def covered(ratio: float) -> float:
        return float(np.mean(targets <= ratio * sources + LENGTH_MARGIN))

    assert covered(found) >= 0.999 > covered(found - 0.01)
    assert round(found, 2) == found


def test_is_not_below_the_mean_ratio() -> None:
    """Short targets alone would allow their ten tokens to any source."""
    assert max_length_ratio(corpus([4, 2], [5, 4], append_eos=True), append_eos=True) == 1.5
