"""Bins that suit the lengths."""

import numpy as np
import pytest

from attendant.training.report.measuring import MAX_BINS, natural_edges, natural_unit


@pytest.mark.parametrize(
    ("lengths", "edges"),
    [
        ([5] * 50, (5,)),
        (list(range(3, 14)) * 20, (4, 6, 8, 10, 12)),
        (list(range(1, 26)) * 10, (5, 10, 15, 20)),
        (list(range(1, 46)) * 10, (10, 20, 30, 40)),
        (list(range(200, 420)) * 2, (250, 300, 350, 400)),
    ],
)
def test_edges_are_round_and_suit(lengths: list[int], edges: tuple[int, ...]) -> None:
    assert natural_edges(lengths) == edges


@pytest.mark.parametrize("seed", range(20))
def test_bins_are_few_and_none_hangs_on_a_handful(seed: int) -> None:
    generator = np.random.default_rng(seed)
    lengths = np.maximum(1, generator.lognormal(generator.uniform(0, 6), generator.uniform(0, 1.5), 2000)).astype(int)
    edges = natural_edges(lengths.tolist())
    assert 1 <= len(edges) < MAX_BINS and list(edges) == sorted(set(edges)) and edges[0] > 0
    counts = np.histogram(lengths, [0, *(np.array(edges) + 0.5), np.inf])[0]
    assert counts[0] >= 10


def test_words_are_counted_where_there_are_some() -> None:
    assert natural_unit(["a longer sentence here", "two words", "and three words"]) == "words"
    assert natural_unit(["phoneme", "attention", "New York"]) == "tokens"
