"""The lexicon finds what words stand for, though no pair says which word is which."""

import numpy as np
import pytest

from export.shortlist.lexicon import learn_lexicon
from training.data.corpus import Corpus, TokenSequences

NOTHING = -1


def corpus_of(*pairs: tuple[list[int], list[int]]) -> Corpus:
    return Corpus(TokenSequences.of([a for a, _ in pairs]), TokenSequences.of([b for _, b in pairs]), 0)


def translated(count: int, vocabulary: int) -> Corpus:
    """Symbol s stands for 2 s, in any order; some target symbols, 1 and 3, stand for nothing."""
    random = np.random.default_rng(5)
    pairs = []
    for _ in range(count):
        source = random.choice(np.arange(4, vocabulary), random.integers(2, 7), replace=False)
        target = [*(2 * source).tolist(), *[1] * int(random.integers(3)), *[3] * int(random.integers(2))]
        pairs.append((source.tolist(), random.permutation(target).tolist()))
    return corpus_of(*pairs)


def test_the_likeliest_symbol_is_the_translation() -> None:
    found = learn_lexicon(translated(400, 20), 20, 3).candidates
    assert found.shape == (20, 3)
    assert found[4:, 0].tolist() == [2 * symbol for symbol in range(4, 20)]


def test_a_symbol_that_never_occurs_has_no_candidates() -> None:
    found = learn_lexicon(corpus_of(([5, 6], [7])), 8, 2).candidates
    assert found[[0, 4, 7]].tolist() == [[NOTHING] * 2] * 3
    assert found[[5, 6]].tolist() == [[7, NOTHING]] * 2


def test_equal_probabilities_are_ordered_by_id() -> None:
    found = learn_lexicon(corpus_of(([4], [9, 6, 8])), 5, 3).candidates
    assert found[4].tolist() == [6, 8, 9]


def test_the_first_round_is_what_the_paper_says() -> None:
    """Uniform at first: counts are shares of each target position among its pair's symbols and NULL."""
    found = learn_lexicon(corpus_of(([4, 5], [6, 7]), ([4], [6])), 6, 2).candidates
    assert found[4].tolist() == [6, 7]  # seen with 6 twice
    assert found[5].tolist() == [7, 6]  # 6 is explained by 4 already


@pytest.mark.parametrize("max_links", [50, 400])
def test_a_large_corpus_is_looked_at_in_part(max_links: int) -> None:
    """Evenly: the last pair is among those that are seen."""
    pairs = [([4], [6])] * 400 + [([5], [7])] * 400
    found = learn_lexicon(corpus_of(*pairs), 6, 1, max_links=max_links).candidates
    assert found[[4, 5], 0].tolist() == [6, 7]
