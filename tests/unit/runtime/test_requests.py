"""A prefix that is given as text: what is forced, and in which ways its last word may be completed."""

import itertools

import pytest

from attendant.runtime.bundle.tokenizer import Tokenizer
from attendant.runtime.decoding.options import choice_after
from attendant.runtime.requests import completion_of, read_prefix_text
from attendant.runtime.violations import Violations
from attendant.training.data.tokenization import TokenizerConfig, TokenizerKind, train_tokenizer

TEXTS = ["open the file and the folder", "opener theory", "other files 12"]


def trained(kind: TokenizerKind, **options: object) -> Tokenizer:
    config = TokenizerConfig.model_validate({"tokenizer": kind, "vocabulary_size": 60} | options)
    return train_tokenizer(config, TEXTS * 5)


def read(text: str, tokenizer: Tokenizer, most: int = 20) -> tuple[list[str], bool]:
    """The forced tokens, and whether there is a word to complete."""
    violations = Violations()
    ids, completion = read_prefix_text(text, tokenizer, most, violations)
    assert not violations.found
    return tokenizer.tokens_of(ids), bool(completion)


def test_whole_words_are_forced_and_the_last_one_is_completed() -> None:
    bpe, words, letters = trained("bpe"), trained("word"), trained("character")
    assert read("open the fi", bpe) == (bpe.tokens_of(bpe.encode("open the")), True)
    assert read("open the fi", words) == (["open", "the"], True)
    assert read("open the fi", letters) == (list("open the fi"), False)
    assert read("open the ", words) == (["open", "the"], False)
    assert read("open the ", bpe) == (bpe.tokens_of(bpe.encode("open the")), True)
    assert read("\ufeff open\u00a0the\n", letters) == (list("open the "), False)
    for tokenizer in (bpe, words, letters):
        assert read("", tokenizer) == read(" ", tokenizer) == ([], False)


@pytest.mark.parametrize("word", ["▁", "▁o", "▁op", "▁th", "▁the", "▁theor", "1", "▁f"])
def test_a_word_is_completed_in_every_segmentation(word: str) -> None:
    """Against all sequences of up to four symbols: those that write the word, or a longer one that begins with it."""
    tokenizer = trained("bpe")
    completion = completion_of(word, tokenizer)
    symbols = [i for i in range(4, tokenizer.vocabulary_size) if tokenizer.tokens_of([i])[0][0] in word]
    for length in range(1, 4):
        for ids in itertools.product(symbols, repeat=length):
            before = "".join(tokenizer.tokens_of(ids[:-1]))
            if len(before) >= len(word) or not word.startswith(before):
                continue
            choice = choice_after(completion, ids[:-1])
            written = before + tokenizer.tokens_of(ids[-1:])[0]
            may = word.startswith(written) and written != word and bool(completion_of(word[len(written) :], tokenizer))
            assert choice is not None
            assert (ids[-1] in choice.ids.tolist()) == (may or written.startswith(word)), (before, written)


@pytest.mark.parametrize(
    ("text", "kind", "limit"),
    [
        ("open ψ", "bpe", "is 'open ψ', must be a text that the symbols of the target's vocabulary spell"),
        ("ψ open", "bpe", "must be a text that the symbols of the target's vocabulary spell"),
        ("open xy", "word", "must be a text that the symbols of the target's vocabulary spell"),
        ("open the file", "word", "is 3 tokens long, must be 0 to 2 tokens long"),
        ("open " * 1000, "word", "characters long"),
    ],
)
def test_what_no_hypothesis_can_begin_with_is_refused(text: str, kind: TokenizerKind, limit: str) -> None:
    violations = Violations()
    read_prefix_text(text, trained(kind), 2 if kind == "word" else 20, violations)
    (violation,) = violations.found
    assert violation.field == "decoding.target_prefix_text" and limit in str(violation)


def test_a_word_beyond_all_bounds_is_taken_as_it_is() -> None:
    tokenizer = trained("bpe")
    ids, completion = read_prefix_text("the" * 30, tokenizer, 100, Violations())
    assert not completion and list(ids) == tokenizer.encode("the" * 30)
