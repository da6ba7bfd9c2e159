"""The tables of a shortlist: what is frequent, in which order, and what is never generated last."""

from export.shortlist.tables import make_shortlist
from runtime.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from training.data.corpus import Corpus, TokenSequences

TARGETS = [[9, 9, 9, 5], [9, 5, 7], [5]]


def corpus() -> Corpus:
    return Corpus(TokenSequences.of([[4, 3], [5, 3], [4, 5, 3]]), TokenSequences.of(TARGETS), 0)


def test_frequent_symbols_stand_behind_the_end_and_the_unknown() -> None:
    made = make_shortlist(corpus(), 6, 12, 8)
    assert made.frequent.tolist() == [EOS_ID, UNK_ID, 9, 5, 7, 4, 6, 8]
    assert made.num_leading == 3
    assert made.candidates.shape == (6, 1)
    assert made.vocabulary_size == 12


def test_what_is_never_generated_comes_last() -> None:
    made = make_shortlist(corpus(), 6, 12, 11)
    assert made.frequent.tolist()[-1] == PAD_ID
    assert BOS_ID not in made.frequent
