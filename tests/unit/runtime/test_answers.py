"""Tests of answers: streamed text, replaced unknown symbols, and signals of quality."""

import itertools
import math
import random
import sys
import unicodedata
from dataclasses import replace

import numpy as np
import pytest
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import decoders, models, pre_tokenizers

from attendant.runtime.answers import (
    MIN_ANSWERS,
    PRIOR,
    SIGNALS,
    DriftWatch,
    answer_fields,
    distribution_of,
    replace_unknowns,
    signals_of,
    stability_index,
)
from attendant.runtime.bundle.bundle import BundleModel
from attendant.runtime.bundle.manifest import Distribution, Reference
from attendant.runtime.bundle.tokenizer import SPECIAL_TOKENS, UNK_ID, Tokenizer
from attendant.runtime.decoding.hypothesis import FinishReason, Hypothesis, Progress
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.growing_answer import GrowingAnswer, GrowingText, Piece
from attendant.runtime.requests import ReadRequest
from attendant.training.data.tokenization import TargetConfig, train_tokenizer
from tests.serving import fake_bundle, symbol_tokenizer

TEXTS = ["el niño, qué?", "señor – Ångström", "x\u0323\u0301y e\u0327", "\U0001f469\u200d\U0001f4bb!", "क्षि 漢字"]
UNIT = ReadRequest(source_ids=(4,), num_source_tokens=1, options=DecodingOptions(max_length=9))
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
    library = LibraryTokenizer(models.BPE({symbol: n for n, symbol in enumerate([*SPECIAL_TOKENS, *symbols])}, []))
    library.model.unk_token = SPECIAL_TOKENS[UNK_ID]
    library.model.byte_fallback = kind == "byte fallback"
    library.pre_tokenizer = None if kind == "byte fallback" else pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteFallback() if kind == "byte fallback" else decoders.ByteLevel()
    return Tokenizer(library)


def pieces_of(tokenizer: Tokenizer, ids: list[int], cuts: list[int]) -> list[Piece]:
    growing = GrowingText(tokenizer, UNIT)
    pieces = [growing.grow(ids[:cut]) for cut in cuts]
    pieces.append(growing.rest(tokenizer.tokens_of(ids), tokenizer.decode(ids)))
    return [piece for piece in pieces if piece is not None]


@pytest.mark.parametrize("kind", KINDS)
def test_streamed_pieces_join_to_the_whole_answer(kind: str) -> None:
    tokenizer, rng = tokenizer_of(kind), random.Random(3)
    for _ in range(150):
        ids = tokenizer.encode(rng.choice(TEXTS)) if rng.random() < 0.5 else []
        ids += [rng.randrange(4, tokenizer.vocabulary_size) for _ in range(rng.randrange(6))]
        cuts = sorted(rng.sample(range(len(ids) + 1), rng.randrange(len(ids) + 1)))
        pieces = pieces_of(tokenizer, ids, cuts)
        assert [token for piece in pieces for token in piece.tokens] == tokenizer.tokens_of(ids)
        assert "".join(piece.text for piece in pieces) == tokenizer.decode(ids)
        assert all(piece.tokens for piece in pieces)


def test_no_piece_ends_inside_a_placeholder() -> None:
    tokenizer = symbol_tokenizer("abc {}0123456789", characters=True)
    spans = ("<b>", *("" for _ in range(10)), "%s")
    ids = tokenizer.encode("a{1} b {12}{ c{")
    growing = GrowingText(tokenizer, replace(UNIT, spans=spans, openings=frozenset({1})))
    pieces = [growing.grow(ids[:end]) for end in range(len(ids) + 1)]
    texts = [piece.text for piece in pieces if piece is not None]
    assert texts == ["a", "<b>", "", "b", " ", "%s", "{ ", "c"], "a brace is held until the next characters decide"
    last = growing.rest(tokenizer.tokens_of(ids), "a<b>b %s{ c{")
    assert last is not None and last.text == "{"


def test_parts_are_streamed_in_order_even_if_a_later_part_ends_first() -> None:
    tokenizer = symbol_tokenizer("abcd{1}", characters=True)
    second = replace(UNIT, spans=("%s",), after=" ")
    whole = replace(UNIT, parts=(replace(UNIT, before="- ", after="\n"), second, replace(UNIT, before="(", after=")")))
    growing = GrowingAnswer(whole, tokenizer)
    assert growing.grow() == Piece([], "- ")
    growing.add(1, Progress(0, tuple(tokenizer.encode("c{1}"))))
    growing.end(2, hypothesis_of("d", tokenizer))
    assert growing.grow() is None, "the first part has not begun"
    growing.add(0, Progress(0, tuple(tokenizer.encode("a"))))
    growing.add(0, Progress(0, tuple(tokenizer.encode("ab"))))
    assert growing.grow() == Piece(["a", "b"], "ab")
    growing.end(0, hypothesis_of("abb", tokenizer))
    assert growing.grow() == Piece(["b", "c", "{", "1", "}"], "b\nc%s")
    assert growing.grow() is None
    growing.end(1, hypothesis_of("c{1}", tokenizer))
    assert growing.grow() == Piece(["d"], " (d)")
    assert growing.grow() is None


def hypothesis_of(text: str, tokenizer: Tokenizer) -> Hypothesis:
    return Hypothesis(tuple(tokenizer.encode(text)), (), 0.0, 0.0, FinishReason.EOS)


def test_an_answer_with_bytes_that_are_no_character_has_a_warning() -> None:
    tokenizer = tokenizer_of("byte fallback")
    bundle = replace(fake_bundle(), source_tokenizer=tokenizer, target_tokenizer=tokenizer)
    model = BundleModel(bundle=bundle, precision="fp32", limits=bundle.manifest.limits)

    def warnings(source: str, answer: bytes) -> tuple[str, ...]:
        ids = tuple(tokenizer.encode(source))
        request = replace(UNIT, source_ids=ids, num_source_tokens=len(ids))
        target = tuple(tokenizer.ids_of([f"<0x{byte:02X}>" for byte in answer]))
        hypothesis = Hypothesis(target, (), 0.0, 0.0, FinishReason.EOS)
        warned: tuple[str, ...] = answer_fields([hypothesis], None, request, model)["warnings"]
        return warned

    assert warnings("a", "é".encode()) == warnings("\ufffd", "\ufffd".encode()) == ()
    (warning,) = warnings("é", "é".encode()[:1])
    assert warning == "the answer has bytes that are no character, shown as U+FFFD: a part of it is lost"


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


def test_a_token_is_held_only_if_the_next_one_may_combine_with_it() -> None:
    plain = train_tokenizer(TargetConfig(tokenizer="character"), ["abc é"])
    assert not plain.combines
    growing = GrowingText(plain, UNIT)
    assert growing.grow(plain.encode("a")) == Piece(["a"], "a")
    combining = train_tokenizer(TargetConfig(tokenizer="character", nfc=False), ["abce\u0301"])
    assert combining.combines
    growing = GrowingText(combining, UNIT)
    assert growing.grow(combining.encode("ae")) == Piece(["a"], "a")
    assert growing.grow(combining.encode("ae\u0301")) is None
    assert growing.grow(combining.encode("ae\u0301b")) == Piece(["e", "\u0301"], "e\u0301")


def test_text_from_an_unknown_symbol_on_is_held_until_the_end() -> None:
    tokenizer = train_tokenizer(TargetConfig(tokenizer="word"), ["a b c"])
    growing = GrowingText(tokenizer, replace(UNIT, source_words=["a", "x", "b"]))
    ids = tokenizer.encode("a ? b")
    assert growing.grow(ids) == Piece(["a"], "a")
    assert growing.grow([*ids, *ids]) is None
    assert growing.rest(["a", "x", "b"], "a x b") == Piece(["x", "b"], " x b")


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        # Each attends mostly to its own source symbol.
        ([[0.9, 0.0, 0.1], [0.1, 0.8, 0.1], [0.0, 0.1, 0.9]], "XYZ"),
        # The second attends to the first source symbol again, and nearly as much to the second.
        ([[0.9, 0.0, 0.1], [0.5, 0.4, 0.1], [0.0, 0.1, 0.9]], "XYZ"),
        # The largest weights are used first, in any order.
        ([[0.1, 0.3, 0.2], [0.0, 0.9, 0.1], [0.8, 0.1, 0.1]], "ZYX"),
        # A source symbol may be used twice if it has nearly all attention.
        ([[0.9, 0.0, 0.1], [0.8, 0.1, 0.1], [0.0, 0.1, 0.9]], "XXZ"),
    ],
)
def test_each_source_symbol_replaces_one_unknown_if_nearly_as_probable(weights: list[list[float]], text: str) -> None:
    tokenizer = symbol_tokenizer("ab", characters=True)
    attention = np.array([[*row, 0.0] for row in weights] + [[0.0] * 4], np.float32)
    answer = Hypothesis((UNK_ID,) * 3, (), 0.0, 0.0, FinishReason.EOS, attention)
    assert replace_unknowns(answer, "XYZ", [UNK_ID] * 3 + [3], tokenizer) == (list(text), text)


def test_a_known_word_may_be_used_as_often_as_it_is_looked_at() -> None:
    tokenizer = symbol_tokenizer("ab", characters=True)
    attention = np.array([[0.6, 0.4], [0.6, 0.4], [0.0, 0.0]], np.float32)
    answer = Hypothesis((UNK_ID, UNK_ID), (), 0.0, 0.0, FinishReason.EOS, attention)
    assert replace_unknowns(answer, "aX", [4, UNK_ID], tokenizer) == (["a", "a"], "aa")


def hypothesis(num_tokens: int, reason: FinishReason = FinishReason.EOS) -> Hypothesis:
    log_probs = (-0.5,) * (num_tokens + (reason is FinishReason.EOS))
    return Hypothesis((7,) * num_tokens, log_probs, sum(log_probs), 0.0, reason)


def answers(num: int, *, longer: float = 1.0, seed: int = 0) -> list[tuple[float, ...]]:
    chance = random.Random(seed)
    signals = []
    for _ in range(num):
        length = chance.randint(3, 20)
        source = tuple(UNK_ID if chance.random() < 0.02 else 9 for _ in range(length))
        best = hypothesis(max(1, round(longer * length * chance.uniform(0.7, 1.3))))
        signals.append(signals_of((*source, 3), length, best))
    return signals


def reference(num: int = 1000) -> Reference:
    columns = zip(*answers(num), strict=True)
    signals = {name: distribution_of(column) for name, column in zip(SIGNALS, columns, strict=True)}
    return Reference(num_examples=num, precision="fp32", data="some", signals=signals)


def test_signals_of_an_answer_are_computed() -> None:
    cut = signals_of((5, UNK_ID, 6, UNK_ID, 3), 4, hypothesis(8, FinishReason.LENGTH))
    assert dict(zip(SIGNALS, cut, strict=True)) == {
        "source_tokens": 4,
        "unknown_ratio": 0.5,
        "length_ratio": 2.0,
        "mean_log_prob": -0.5,
        "truncated": True,
    }


def test_bins_have_equal_shares_if_values_differ() -> None:
    distribution = distribution_of([float(value) for value in range(100)])
    assert distribution.edges == tuple(float(edge) for edge in range(9, 90, 10))
    assert distribution.shares == (0.1,) * 10


def test_equal_values_share_a_bin_and_larger_values_have_one() -> None:
    assert distribution_of([0.0] * 50) == Distribution(edges=(0.0,), shares=(1.0, 0.0))


def test_values_that_are_rounded_to_one_edge_share_a_bin() -> None:
    values = [-0.5 - number * 1e-9 for number in range(100)]
    assert distribution_of(values) == Distribution(edges=(-0.5,), shares=(1.0, 0.0))


@pytest.mark.parametrize("shares", [(0.5, 0.3, 0.2), (1.0, 0.0, 0.0)])
def test_the_index_is_the_sum_over_bins(shares: tuple[float, ...]) -> None:
    observed = [10.0, 80.0, 10.0]
    expected = (np.array(shares) * 200 + PRIOR) / (200 + 3 * PRIOR)
    seen = (np.array(observed) + PRIOR) / (100 + 3 * PRIOR)
    index = stability_index(Distribution(edges=(1.0, 2.0), shares=shares), 200, observed)
    assert index == pytest.approx(float(((seen - expected) * np.log(seen / expected)).sum()))


def test_drift_is_detected_in_the_signal_that_changed() -> None:
    watch = DriftWatch(reference())
    few = answers(MIN_ANSWERS, seed=1)
    for signals in few[1:]:
        watch.add(signals)
    assert all(math.isnan(watch.index(signal)) for signal in SIGNALS)
    for signals in [*few[:1], *answers(3000, seed=2)]:
        watch.add(signals)
    assert all(watch.index(signal) < 0.1 for signal in SIGNALS)
    for signals in answers(3000, longer=1.5, seed=3):
        watch.add(signals)
    assert watch.index("length_ratio") > 0.25
    assert watch.index("source_tokens") < 0.1
    for signals in answers(8000, seed=4):
        watch.add(signals)
    assert watch.index("length_ratio") < 0.1, "old answers no longer count"


def test_the_memory_of_a_drift_watch_is_bounded() -> None:
    watch = DriftWatch(reference(), half_life=1)
    signals = answers(1)[0]
    for _ in range(10_000):
        watch.add(signals)
    assert all(math.isfinite(watch.index(signal)) for signal in SIGNALS)
    assert sum(sys.getsizeof(counts) for counts in watch._counts) < 2000


@pytest.mark.parametrize(
    "fields", [{"edges": (1.0, 1.0), "shares": (0.2, 0.3, 0.5)}, {"edges": (2.0, 1.0), "shares": (0.2, 0.3, 0.5)}]
)
def test_edges_that_do_not_ascend_are_refused(fields: dict[str, tuple[float, ...]]) -> None:
    with pytest.raises(ValueError, match="edges must ascend"):
        Distribution(**fields)
