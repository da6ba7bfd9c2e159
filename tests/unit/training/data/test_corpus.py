"""Tokenized corpora: what stays, what leaves, and how much of it is unknown."""

import pytest

from attendant.runtime.bundle.tokenizer import EOS_ID
from attendant.runtime.errors import UserError
from attendant.training.data.config import DataConfig
from attendant.training.data.corpus import Corpus, PairEncoder, TokenSequences, encode_pairs, unknown_share
from attendant.training.data.pairs import Pair
from attendant.training.data.tokenization import TokenizerConfig, train_tokenizer

TOKENIZER = train_tokenizer(TokenizerConfig(tokenizer="character"), ["abcd"])


def config(source: int, target: int, **others: object) -> DataConfig:
    files = {"train": "t.tsv", "validation": "v.tsv"}
    return DataConfig.model_validate(files | {"max_source_tokens": source, "max_target_tokens": target} | others)


def encode(pairs: list[Pair], config: DataConfig, *, append_eos: bool = False) -> Corpus:
    return encode_pairs(pairs, PairEncoder(TOKENIZER, TOKENIZER, config, append_eos=append_eos))


def test_sequences_lie_end_to_end() -> None:
    sequences = TokenSequences.of([[1, 2], [], [3]])
    assert len(sequences) == 3
    assert [sequences[index].tolist() for index in range(3)] == [[1, 2], [], [3]]
    assert sequences.lengths.tolist() == [2, 0, 1]
    assert len(TokenSequences.of([])) == 0


@pytest.mark.parametrize("append_eos", [True, False])
def test_limits_do_not_count_eos(append_eos: bool) -> None:
    pairs = [Pair("ab", "abc"), Pair("abc", "a"), Pair("a", "abcd"), Pair("b", "a")]
    corpus = encode(pairs, config(2, 3), append_eos=append_eos)
    assert corpus.num_too_long == 2
    end = [EOS_ID] if append_eos else []
    assert [corpus.sources[index].tolist() for index in range(2)] == [
        TOKENIZER.encode("ab") + end,
        TOKENIZER.encode("b") + end,
    ]
    assert corpus.targets[0].tolist() == TOKENIZER.encode("abc")


@pytest.mark.parametrize("append_eos", [True, False])
def test_sides_of_unequal_lengths_leave(append_eos: bool) -> None:
    pairs = [Pair("ab", "abcd"), Pair("ab", "abcda"), Pair("abcda", "ab"), Pair("a" * 9, "a"), Pair("ab", "")]
    corpus = encode(pairs, config(8, 8, max_length_ratio=2.0), append_eos=append_eos)
    assert (len(corpus), corpus.num_too_long, corpus.num_unequal) == (1, 2, 2)
    with pytest.raises(UserError, match=r"in a ratio of at most 2: .* or data\.max_length_ratio"):
        encode([Pair("a", "abc")], config(9, 9, max_length_ratio=2.0))


def test_sources_of_too_many_words_leave() -> None:
    pairs = [Pair("ab cd.", "ab"), Pair("ab cd, d", "ab"), Pair("abcdabcd", "ab")]
    corpus = encode(pairs, config(9, 9, max_source_words=3))
    assert (len(corpus), corpus.num_too_long) == (2, 1)
    with pytest.raises(UserError, match=r"in at most 1 source words: .* or data\.max_source_words"):
        encode([Pair("a b", "a")], config(9, 9, max_source_words=1))


def test_a_corpus_of_which_nothing_stays_is_refused() -> None:
    with pytest.raises(UserError, match="none of the 1 pairs has at most 1 source and 9 target tokens"):
        encode([Pair("ab", "a")], config(1, 9), append_eos=True)


def test_counts_unknown_symbols() -> None:
    corpus = encode([Pair("axyz", "a")], config(9, 9))
    assert unknown_share(corpus.sources) == 0.75
