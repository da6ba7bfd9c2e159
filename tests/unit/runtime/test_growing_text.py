"""Pieces of an answer that grows: put together they are the answer, and none ends where it should not."""

import itertools
import random
import unicodedata

import pytest
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import decoders, models, pre_tokenizers

from attendant.runtime.answers import GrowingText, Piece
from attendant.runtime.bundle.tokenizer import SPECIAL_TOKENS, UNK_ID, Tokenizer
from attendant.training.data.tokenization import TargetConfig, train_tokenizer

TEXTS = ["el niño, qué?", "señor – Ångström", "x\u0323\u0301y e\u0327", "\U0001f469\u200d\U0001f4bb!", "क्षि 漢字"]
KINDS = ["character", "word", "bpe", "bytes", "byte fallback", "bpe with bytes"]


def tokenizer_of(kind: str) -> Tokenizer:
    if kind in ("character", "word", "bpe"):
        return train_tokenizer(TargetConfig(tokenizer=kind, nfc=False, vocabulary_size=120), TEXTS)  # type: ignore[arg-type]
    if kind == "bpe with bytes":
        config = TargetConfig(tokenizer="bpe", normalize=(), vocabulary_size=300, byte_fallback=True)
        return train_tokenizer(config, ["el que y x!"] * 9)
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    if kind == "byte fallback":
        symbols = [f"<0x{byte:02X}>" for byte in range(256)]
    library = LibraryTokenizer(models.BPE({one: n for n, one in enumerate([*SPECIAL_TOKENS, *symbols])}, []))
    library.model.unk_token = SPECIAL_TOKENS[UNK_ID]
    library.model.byte_fallback = kind == "byte fallback"
    library.pre_tokenizer = None if kind == "byte fallback" else pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteFallback() if kind == "byte fallback" else decoders.ByteLevel()
    return Tokenizer(library)


def pieces_of(tokenizer: Tokenizer, ids: list[int], cuts: list[int]) -> list[Piece]:
    growing = GrowingText(tokenizer)
    found = [growing.grow(ids[:cut]) for cut in cuts]
    found.append(growing.rest(tokenizer.tokens_of(ids), tokenizer.decode(ids)))
    return [one for one in found if one is not None]


@pytest.mark.parametrize("kind", KINDS)
def test_the_pieces_are_the_answer_however_it_comes(kind: str) -> None:
    tokenizer, rng = tokenizer_of(kind), random.Random(3)
    for _ in range(150):
        ids = tokenizer.encode(rng.choice(TEXTS)) if rng.random() < 0.5 else []
        ids += [rng.randrange(4, tokenizer.vocabulary_size) for _ in range(rng.randrange(6))]
        cuts = sorted(rng.sample(range(len(ids) + 1), rng.randrange(len(ids) + 1)))
        pieces = pieces_of(tokenizer, ids, cuts)
        assert [token for piece in pieces for token in piece.tokens] == tokenizer.tokens_of(ids)
        assert "".join(piece.text for piece in pieces) == tokenizer.decode(ids)
        assert all(piece.tokens for piece in pieces)


@pytest.mark.parametrize("kind", KINDS)
def test_no_piece_ends_inside_a_character(kind: str) -> None:
    tokenizer, num_pieces = tokenizer_of(kind), 0
    for text in TEXTS:
        ids = tokenizer.encode(text)
        pieces = [piece.text for piece in pieces_of(tokenizer, ids, list(range(1, len(ids))))]
        num_pieces += len(pieces)
        for before, piece in itertools.pairwise(pieces):
            assert "\ufffd" not in piece and not unicodedata.category(piece[0]).startswith("M")
            assert "\u200d" not in (before[-1:], piece[0])
    assert num_pieces > len(TEXTS)


def test_a_token_is_held_only_where_the_next_one_may_combine_with_it() -> None:
    plain = train_tokenizer(TargetConfig(tokenizer="character"), ["abc é"])
    assert not plain.combines
    growing = GrowingText(plain)
    assert growing.grow(plain.encode("a")) == Piece(["a"], "a")
    combining = train_tokenizer(TargetConfig(tokenizer="character", nfc=False), ["abce\u0301"])
    assert combining.combines
    growing = GrowingText(combining)
    assert growing.grow(combining.encode("ae")) == Piece(["a"], "a")
    assert growing.grow(combining.encode("ae\u0301")) is None
    assert growing.grow(combining.encode("ae\u0301b")) == Piece(["e", "\u0301"], "e\u0301")


def test_what_replaces_an_unknown_is_not_guessed() -> None:
    tokenizer = train_tokenizer(TargetConfig(tokenizer="word"), ["a b c"])
    growing = GrowingText(tokenizer, replaces_unknowns=True)
    ids = tokenizer.encode("a ? b")
    assert growing.grow(ids) == Piece(["a"], "a")
    assert growing.grow([*ids, *ids]) is None
    assert growing.rest(["a", "x", "b"], "a x b") == Piece(["x", "b"], " x b")
