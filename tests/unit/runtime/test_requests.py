"""Tests of prefixes given as text (forced tokens and completions of the last word), and of texts in parts."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import decoders, models, pre_tokenizers

from attendant.runtime.bundle.tokenizer import SPECIAL_TOKENS, UNK_ID, Tokenizer
from attendant.runtime.decoding.options import Choice, DecodingOptions, choice_after
from attendant.runtime.errors import Violations
from attendant.runtime.requests import ReadRequest, completion_of, read_prefix_text
from attendant.training.data.tokenization import TokenizerConfig, TokenizerKind, train_tokenizer

TEXTS = ["open the file and the folder", "opener theory", "other files 12"]


def trained(kind: TokenizerKind, **options: object) -> Tokenizer:
    config = TokenizerConfig.model_validate({"tokenizer": kind, "vocabulary_size": 60} | options)
    return train_tokenizer(config, TEXTS * 5)


def read(text: str, tokenizer: Tokenizer, most: int = 20) -> tuple[list[str], bool]:
    """Returns the forced tokens, and True if there is a word to complete."""
    violations = Violations()
    ids, completion = read_prefix_text(text, tokenizer, most, violations)
    assert not violations
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
    """Compares with all sequences of up to three symbols that write the word or a longer one that begins with it."""
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
def test_a_prefix_that_no_hypothesis_can_have_is_refused(text: str, kind: TokenizerKind, limit: str) -> None:
    violations = Violations()
    read_prefix_text(text, trained(kind), 2 if kind == "word" else 20, violations)
    (violation,) = violations
    assert violation.field == "decoding.target_prefix_text" and limit in str(violation)


def test_a_word_that_is_too_long_is_not_completed() -> None:
    tokenizer = trained("bpe")
    ids, completion = read_prefix_text("the" * 30, tokenizer, 100, Violations())
    assert not completion and list(ids) == tokenizer.encode("the" * 30)


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        ("o", {"o", "op", "open"}),
        ("the op", {"the op", "the open"}),
        ("openi", {"openin", "opening"}),
        ("the openin", {"the openin", "the opening"}),
        ("op ", {"op"}),
    ],
)
def test_a_word_is_completed_by_symbols_with_a_mark(text: str, texts: set[str]) -> None:
    """Uses a tokenizer of Hugging Face's library in which `##` continues a word."""
    pieces = ["o", "op", "open", "in", "er", "ing", "the"]
    symbols = [*SPECIAL_TOKENS, *pieces, *(f"##{piece}" for piece in pieces)]
    vocabulary = {symbol: number for number, symbol in enumerate(symbols)}
    library = LibraryTokenizer(models.WordPiece(vocabulary, unk_token=SPECIAL_TOKENS[UNK_ID]))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    library.decoder = decoders.WordPiece("##")
    tokenizer = Tokenizer(library)
    forced, completion = read_prefix_text(text, tokenizer, 20, Violations())
    assert {tokenizer.decode(ids) for ids in completed([*forced], len(forced), completion)} == texts


def completed(ids: list[int], num_forced: int, completion: Sequence[Choice]) -> list[list[int]]:
    """Returns every sequence of tokens that completes the last word."""
    choice = choice_after(completion, ids[num_forced:])
    if choice is None:
        return [ids]
    return [more for i in choice.ids.tolist() for more in completed([*ids, i], num_forced, completion)]


def test_parts_keep_their_attention_if_the_whole_has_none() -> None:
    """Checks that a part keeps its attention, to replace unknown symbols, although the whole text has none."""
    options = DecodingOptions(max_length=9, attention=True)
    part = ReadRequest(source_ids=(4, 5, 3), num_source_tokens=2, options=options)
    whole = replace(part, source_ids=part.source_ids * 4, options=replace(options, max_length=36), parts=(part,) * 4)
    assert (part.num_attention_cells, whole.num_attention_cells) == (10 * 3, 4 * 10 * 3)
    assert replace(whole, attention=True).num_attention_cells == 37 * 12
