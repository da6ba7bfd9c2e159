"""Signals of quality, their distributions, and the index that says how far two are apart."""

import math
import random
import sys

import numpy as np
import pytest

from attendant.runtime.answers import (
    MIN_ANSWERS,
    PRIOR,
    SIGNALS,
    DriftWatch,
    distribution_of,
    signals_of,
    stability_index,
)
from attendant.runtime.bundle.manifest import Distribution, Reference
from attendant.runtime.bundle.tokenizer import UNK_ID
from attendant.runtime.decoding.hypothesis import FinishReason, Hypothesis


def hypothesis(num_tokens: int, reason: FinishReason = FinishReason.EOS) -> Hypothesis:
    log_probs = (-0.5,) * (num_tokens + (reason is FinishReason.EOS))
    return Hypothesis((7,) * num_tokens, log_probs, sum(log_probs), 0.0, reason)


def answers(num: int, *, longer: float = 1.0, seed: int = 0) -> list[tuple[float, ...]]:
    chance = random.Random(seed)
    found = []
    for _ in range(num):
        length = chance.randint(3, 20)
        source = tuple(UNK_ID if chance.random() < 0.02 else 9 for _ in range(length))
        best = hypothesis(max(1, round(longer * length * chance.uniform(0.7, 1.3))))
        found.append(signals_of((*source, 3), length, best))
    return found


def reference(num: int = 1000) -> Reference:
    columns = zip(*answers(num), strict=True)
    signals = {name: distribution_of(column) for name, column in zip(SIGNALS, columns, strict=True)}
    return Reference(num_examples=num, precision="fp32", data="some", signals=signals)


def test_signals_of_an_answer() -> None:
    cut = signals_of((5, UNK_ID, 6, UNK_ID, 3), 4, hypothesis(8, FinishReason.LENGTH))
    assert dict(zip(SIGNALS, cut, strict=True)) == {
        "source_tokens": 4,
        "unknown_ratio": 0.5,
        "length_ratio": 2.0,
        "mean_log_prob": -0.5,
        "truncated": True,
    }


def test_bins_have_equal_shares_where_values_differ() -> None:
    found = distribution_of([float(value) for value in range(100)])
    assert found.edges == tuple(float(edge) for edge in range(9, 90, 10))
    assert found.shares == (0.1,) * 10


def test_equal_values_share_a_bin_and_what_is_larger_has_one() -> None:
    assert distribution_of([0.0] * 50) == Distribution(edges=(0.0,), shares=(1.0, 0.0))


@pytest.mark.parametrize("shares", [(0.5, 0.3, 0.2), (1.0, 0.0, 0.0)])
def test_the_index_is_the_sum_over_bins(shares: tuple[float, ...]) -> None:
    observed = [10.0, 80.0, 10.0]
    expected = (np.array(shares) * 200 + PRIOR) / (200 + 3 * PRIOR)
    seen = (np.array(observed) + PRIOR) / (100 + 3 * PRIOR)
    index = stability_index(Distribution(edges=(1.0, 2.0), shares=shares), 200, observed)
    assert index == pytest.approx(float(((seen - expected) * np.log(seen / expected)).sum()))


def test_drift_is_seen_and_its_absence_too() -> None:
    watch = DriftWatch(reference())
    few = answers(MIN_ANSWERS, seed=1)
    for one in few[1:]:
        watch.add(one)
    assert all(math.isnan(watch.index(signal)) for signal in SIGNALS)
    for one in [*few[:1], *answers(3000, seed=2)]:
        watch.add(one)
    assert all(watch.index(signal) < 0.1 for signal in SIGNALS)
    for one in answers(3000, longer=1.5, seed=3):
        watch.add(one)
    assert watch.index("length_ratio") > 0.25
    assert watch.index("source_tokens") < 0.1
    for one in answers(8000, seed=4):
        watch.add(one)
    assert watch.index("length_ratio") < 0.1, "what is long past does not count any more"


def test_it_does_not_grow() -> None:
    watch = DriftWatch(reference(), half_life=1)
    one = answers(1)[0]
    for _ in range(10_000):
        watch.add(one)
    assert all(math.isfinite(watch.index(signal)) for signal in SIGNALS)
    assert sum(sys.getsizeof(counts) for counts in watch._counts) < 2000


@pytest.mark.parametrize(
    "fields", [{"edges": (1.0, 1.0), "shares": (0.2, 0.3, 0.5)}, {"edges": (2.0, 1.0), "shares": (0.2, 0.3, 0.5)}]
)
def test_edges_ascend(fields: dict[str, tuple[float, ...]]) -> None:
    with pytest.raises(ValueError, match="edges must ascend"):
        Distribution(**fields)
