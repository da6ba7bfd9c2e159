"""Tests of a recipe's `normalize`, which makes spellings equal, and of tokenizers: decoding restores a text, and no
text is encoded as a special symbol.
"""

import json
import re
from importlib.util import find_spec

import pytest
from pydantic import ValidationError
from tokenizers import normalizers

from attendant.runtime.bundle.tokenizer import BOS_ID, EOS_ID, PAD_ID, SPECIAL_TOKENS, UNK_ID, Tokenizer, check_content
from attendant.runtime.errors import UserError
from attendant.training.data.tokenization import (
    ORDER,
    STEPS,
    NormalizationName,
    SourceConfig,
    TokenizerConfig,
    TokenizerKind,
    normalization_steps,
    train_tokenizer,
)

# Unigram models are learned by SentencePiece, which may be missing.
SUBWORDS: tuple[TokenizerKind, ...] = ("bpe", "unigram") if find_spec("sentencepiece") else ("bpe",)
KINDS: tuple[TokenizerKind, ...] = ("character", "word", *SUBWORDS)


def trained(kind: TokenizerKind, texts: list[str], *names: str, **options: object) -> Tokenizer:
    config = TokenizerConfig.model_validate({"tokenizer": kind, "normalize": names} | options)
    return Tokenizer.from_text(train_tokenizer(config, texts).to_text())


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("apostrophes", ["don't", "don’t", "don‘t", "donʼt", "don＇t", "don´t"]),
        ("quotes", ['"face"', "“face”", "„face“", "«face»", "＂face＂"]),
        ("drop_quotes", ["face", '"face"', "“face”", "«face»"]),
        ("trim_punctuation", ["face", "(face)", '"face"', "*face*", "face...", "[face];"]),
        ("drop_punctuation", ["face", "(face)", "face,", "face.", "'face.'", "**face**:", "¡face!", "'face'…"]),
        ("spell_capitals", ["Chat.G.P.T", "ChatGPT"]),
        ("dashes", ["a-b", "a–b", "a—b", "a−b", "a‑b"]),
        ("nfc", ["café", "cafe\u0301"]),
        ("nfkc", ["fine 12", "ﬁne １２", "ｆine 12"]),
        ("strip_accents", ["cafe", "café", "cafe\u0301"]),
        ("lowercase", ["istanbul οδος ab", "İstanbul ΟΔΟΣ AB", "istanbul Οδος Ab"]),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_each_normalization_step_makes_spellings_equal(kind: TokenizerKind, name: str, texts: list[str]) -> None:
    tokenizer, plain = trained(kind, texts[:1], name), trained(kind, texts[:1])
    first = tokenizer.encode(texts[0])
    assert UNK_ID not in first
    for text in texts[1:]:
        assert tokenizer.encode(text) == first
        assert plain.encode(text) != plain.encode(texts[0])


def test_steps_together_are_applied_in_their_own_order() -> None:
    names = "strip_accents", "lowercase", "nfkc", "quotes", "apostrophes"
    tokenizer = trained("character", ['l\'ete "fin"'], *names)
    assert tokenizer.encode("  L´ÉTÉ\u00a0“ＦＩＮ” ") == tokenizer.encode('l\'ete "fin"')
    german = trained("character", ["so"], "quotes", "drop_punctuation")
    assert german.encode("‚so‘, „so“") == german.encode("so so")
    exponent = trained("character", ["10-3"], "dashes", "nfkc")
    assert exponent.encode("10⁻³") == exponent.encode("10-3")
    assert trained("character", ["a"], *names).to_text() == trained("character", ["a"], *names[::-1]).to_text()


@pytest.mark.parametrize(
    ("name", "text", "normalized"),
    [
        ("drop_punctuation", "rock 'n' roll, 'tis goin'.", "rock 'n' roll 'tis goin'"),
        ("drop_punctuation", "('don’t!') “dogs’” ''cat's'',", "don’t dogs’ cat's"),
        ("drop_punctuation", "U.S., (e.g.) ...no... x.. a.b main.c.", "U.S. e.g. no x a.b main.c"),
        ("drop_punctuation", "-five --six seven- -5 (-.5) 6-", "five six seven -5 -.5 6"),
        ("drop_punctuation", "3,000 2:30 well-known a/b 50%; #1! C# .net", "3,000 2:30 well-known a/b 50% #1 C# .net"),
        ("drop_punctuation", "word(s), (re)start colo(u)r f(1) ‚so‘ (‚so‘),", "words restart colour f(1 so so"),
        ("spell_capitals", "MySQL, iOS NYTimes DVDs CEOs’ ÉtéTV", "My.S.Q.L, i.O.S N.Y.Times D.V.D.s C.E.O.s’ Été.T.V"),
        *(("spell_capitals", text, text) for text in ("NASA's USB-C PhDs", "McKay LinkedIn iPhone As IS", "GPT-4o")),
        ("drop_quotes", "‚so‘, (‚dogs’).", "so, (dogs)."),
        ("quotes", "‚so‘, dogs’ „so“", '"so", dogs’ "so"'),
        ("drop_punctuation", "• one — two", "one two"),
        ("drop_punctuation", "-'face' **'face'** '-ing' '-5'", "face face ing -5"),
        ("drop_punctuation", "?! … -", ""),
        ("trim_punctuation", " (12) ", "12"),
        ("trim_punctuation", '"12,"', "12,"),
        ("trim_punctuation", "**12**.", "12."),
        ("trim_punctuation", "'90s'", "90s"),
        ("trim_punctuation", "`(5)`…", "(5)"),
        ("trim_punctuation", '"5\'":', "5'"),
        *(
            ("trim_punctuation", text, text)
            for text in ("'90s", "5'10\"", "(555) 123", "(1) and (2)", "()", '"', "12.")
        ),
    ],
)
def test_punctuation_and_capitals_are_changed_in_their_places_only(
    name: NormalizationName, text: str, normalized: str
) -> None:
    steps = normalization_steps([name], keep_spaces=False, marks_words=False)
    normalize = normalizers.Sequence(steps).normalize_str
    assert normalize(text) == normalized
    assert name == "trim_punctuation" or normalize(normalized) == normalized


@pytest.mark.parametrize("run", [".", "-", "'", "!", "-'", ".!", "x'.", "'xx'.", "'x ", "(-", "(x", "‚x"])
def test_punctuation_of_very_long_texts_is_dropped_within_the_limits_of_the_search(run: str) -> None:
    names: list[NormalizationName] = ["trim_punctuation", "drop_punctuation"]
    steps = normalizers.Sequence(normalization_steps(names, keep_spaces=False, marks_words=False))
    for text in (run * 5000, f"x{run * 5000}", f"{run * 5000}x", f"'xx{run * 5000}x"):
        assert len(steps.normalize_str(text)) <= len(text)


@pytest.mark.parametrize("name", STEPS)
def test_expressions_have_only_what_javascript_has(name: NormalizationName) -> None:
    steps = json.loads(normalizers.Sequence(STEPS[name]).__getstate__())["normalizers"]
    expressions = [step["pattern"].get("Regex", "") for step in steps if step["type"] == "Replace"]
    assert not [expression for expression in expressions if re.search(r"\\[KG]|[*+?}]\+|\(\?>", expression)]


def test_letters_without_a_decomposition_keep_their_stroke() -> None:
    tokenizer = trained("character", ["łøđ"], "strip_accents")
    assert tokenizer.decode(tokenizer.encode("łøđ")) == "łøđ"


def test_the_mark_of_a_word_is_a_space_to_bpe_and_a_character_elsewhere() -> None:
    bpe, character = trained("bpe", ["x y"]), trained("character", ["x▁y"])
    assert bpe.encode("x▁y") == bpe.encode("x y") and bpe.decode(bpe.encode("x▁y")) == "x y"
    assert bpe.encode("▁x") == bpe.encode("x")
    assert character.decode(character.encode("x▁y")) == "x▁y"


def test_white_space_within_a_text_can_be_kept() -> None:
    text = "a  b\tc\u00a0d"
    kept, plain = trained("character", [text], keep_spaces=True), trained("character", [text])
    assert kept.decode(kept.encode(f"\ufeff {text}\n")) == kept.spaced(f" {text}") == text
    assert plain.decode(plain.encode(text)) == plain.spaced(text) == "a b c d"


def test_keys_of_earlier_versions_are_read() -> None:
    def names(**options: object) -> tuple[str, ...]:
        return SourceConfig.model_validate({"tokenizer": "bpe"} | options).normalize

    assert names() == names(nfc=True) == names(lowercase=False) == ("nfc",)
    assert names(lowercase=True) == ("nfc", "lowercase")
    assert names(lowercase=True, nfc=False) == ("lowercase",) and names(nfc=False) == ()
    with pytest.raises(ValidationError, match="normalize takes the place of lowercase = true: leave lowercase out"):
        names(lowercase=True, normalize=["nfc"])
    with pytest.raises(ValidationError, match="nfc = 1: must be"):
        names(nfc=1)
    with pytest.raises(ValidationError, match="strip_accents"):
        names(normalize=["upper"])


@pytest.mark.parametrize("options", [{}, {"byte_fallback": True}, {"keep_spaces": True}])
def test_every_normalization_of_a_recipe_is_accepted_in_a_bundle(options: dict[str, object]) -> None:
    tokenizer = trained("bpe", ["abcdefgh ijk"] * 9, *ORDER, vocabulary_size=300, **options)
    check_content(tokenizer.to_text())
    tokenizer.check_encoding()


TEXTS = [
    "The cat's mat costs 1234.50 (or 99) -- ok?!",
    "a </s> b <pad> c <s> d <unk> e",
    "ça  va: l'été, naïve; x_y foo.bar()",
    "x </s> y",
]


def learned(kind: TokenizerKind, texts: list[str] = TEXTS, **options: object) -> Tokenizer:
    return train_tokenizer(TokenizerConfig.model_validate({"tokenizer": kind} | options), texts)


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_never_gives_a_special_symbol(kind: TokenizerKind) -> None:
    tokenizer = learned(kind)
    for text in TEXTS:
        assert not {PAD_ID, BOS_ID, EOS_ID} & set(tokenizer.encode(text))
    assert tokenizer.tokens_of(range(4)) == list(SPECIAL_TOKENS)
    assert json.loads(tokenizer.to_text())["added_tokens"] == []


@pytest.mark.parametrize("kind", ["character", *SUBWORDS])
def test_decoding_restores_known_texts(kind: TokenizerKind) -> None:
    texts = [*TEXTS, "def f():\n\treturn x\x1fy ▅"]
    tokenizer = learned(kind, texts, keep_spaces=True)
    for text in texts:
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("kind", SUBWORDS)
def test_a_word_of_thousands_of_bytes_is_learned_from(kind: TokenizerKind) -> None:
    assert len(learned(kind, ["漢字" * 800]).encode("漢字" * 8)) < 16


def test_characters_are_the_symbols_spaces_included() -> None:
    tokenizer = learned("character", ["ab c\u0301d"], nfc=False)
    assert tokenizer.tokens_of(tokenizer.encode("a b")) == ["a", " ", "b"]
    assert tokenizer.vocabulary_size == 4 + len("ab c\u0301d")


def test_words_are_what_white_space_separates() -> None:
    tokenizer = learned("word", ["AH0 B\tC", "B B C"])
    assert tokenizer.tokens_of(tokenizer.encode("B  AH0 Z")) == ["B", "AH0", "<unk>"]
    assert tokenizer.decode(tokenizer.encode("AH0 B")) == "AH0 B"
    # Most frequent first.
    assert tokenizer.tokens_of(range(4, tokenizer.vocabulary_size)) == ["B", "C", "AH0"]


def test_bpe_never_merges_across_words_digits_or_punctuation() -> None:
    tokenizer = learned("bpe", ["don't stop 1234!! ok"] * 50, vocabulary_size=400)
    assert tokenizer.tokens_of(tokenizer.encode("don't stop 1234!! ok")) == [
        "▁don", "'", "t", "▁stop", "▁1", "2", "3", "4", "!!", "▁ok",
    ]  # fmt: skip


RARE = ["Łukasz Żółw", "日本語入力", "漢字 \U0001f600", "<0xE6> </s> \\", "Пётр", "\U0001f3f4\u200d\u2620\ufe0f"]


@pytest.mark.parametrize("text", RARE, ids=ascii)
def test_with_bytes_no_character_is_lost(text: str) -> None:
    tokenizer = Tokenizer.from_text(learned("bpe", vocabulary_size=400, byte_fallback=True).to_text())
    ids = tokenizer.encode(text)
    assert UNK_ID not in ids and tokenizer.decode(ids) == text
    assert len(tokenizer.words_of(text)) == len(ids)
    assert tokenizer.ids_of(tokenizer.tokens_of(ids)) == ids
    assert UNK_ID in learned("bpe").encode(text)


def test_incomplete_bytes_are_shown_and_keep_the_text_before_them() -> None:
    tokenizer = learned("bpe", vocabulary_size=400, byte_fallback=True)
    ids = tokenizer.encode("a漢字")
    texts = [tokenizer.decode(ids[:end]) for end in range(len(ids) + 1)]
    assert texts[-1] == "a漢字"
    assert [text.rstrip("\ufffd") for text in texts[-7:]] == ["a", "a", "a", "a漢", "a漢", "a漢", "a漢字"]
    assert tokenizer.decode([*ids[:-3], ids[-1], *tokenizer.ids_of(["a"])]) == "a漢\ufffda"


def test_the_rarest_characters_are_spelled_in_bytes_in_training_too() -> None:
    texts = ["abcdefgh " * 300, "z"]
    tokenizer = learned("bpe", texts, vocabulary_size=300, byte_fallback=True)
    assert tokenizer.tokens_of(tokenizer.encode("abz"))[-1] == "<0x7A>"
    assert UNK_ID not in learned("bpe", texts).encode("z")
    assert "<0x61>" in tokenizer.tokens_of(range(4, 260))


def test_bytes_need_bpe_and_room() -> None:
    with pytest.raises(ValueError, match=r"byte_fallback = true .* set it to .*, or leave byte_fallback out"):
        learned("word", byte_fallback=True)
    with pytest.raises(UserError, match=r"4 special symbols, 256 bytes, .* and 8 characters: set it to 269"):
        learned("bpe", vocabulary_size=268, byte_fallback=True)
    assert learned("bpe", vocabulary_size=269, byte_fallback=True).vocabulary_size == 269


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_texts_give_the_same_file(kind: TokenizerKind) -> None:
    assert learned(kind).to_text() == learned(kind).to_text()


def test_training_limits_the_vocabulary() -> None:
    assert learned("word", ["a a a b b c"], vocabulary_size=6).tokens_of(range(4, 6)) == ["a", "b"]
    assert learned("word", ["a a a b b c"], min_frequency=3).vocabulary_size == 5
    # A word that spells a special symbol gets no entry.
    assert learned("word", ["</s> </s> </s> a a b"], vocabulary_size=6).tokens_of(range(4, 6)) == [
        "a",
        "b",
    ]
    with pytest.raises(UserError, match="min_frequency = 9"):
        learned("word", ["a b"], min_frequency=9)


@pytest.mark.parametrize("kind", ["character", "word", *SUBWORDS])
def test_texts_without_a_visible_character_are_refused(kind: TokenizerKind) -> None:
    with pytest.raises(UserError, match="have no characters except white space"):
        learned(kind, ["\u200b", "\u2060 \u200b"])


HAN = ["".join(chr(0x4E00 + 7 * number + place) for place in range(5)) for number in range(100)] + ["abcdefgh"] * 9


@pytest.mark.parametrize("size", [13, 50, 300])
def test_a_bpe_vocabulary_is_at_most_the_requested_size(size: int) -> None:
    tokenizer = learned("bpe", HAN, vocabulary_size=size)
    assert tokenizer.vocabulary_size <= size
    assert UNK_ID not in tokenizer.encode("a bad face"), "the most frequent characters stay"
    assert UNK_ID in tokenizer.encode(chr(0x4E00 + 7 * 99))
    assert tokenizer.to_text() == learned("bpe", HAN, vocabulary_size=size).to_text()


def test_a_bpe_vocabulary_without_room_is_refused_with_the_size_needed() -> None:
    with pytest.raises(UserError, match=r"vocabulary_size = 12 has no room .*: set it to 13 or more; all .* need \d+"):
        learned("bpe", HAN, vocabulary_size=12)
    # Texts with few characters need only a small vocabulary.
    assert learned("bpe", ["ab"], vocabulary_size=7).vocabulary_size == 7


@pytest.mark.parametrize("kind", ["character", *SUBWORDS])
def test_rare_characters_get_no_entry(kind: TokenizerKind) -> None:
    tokenizer = learned(kind, (text for text in ["abc abc", "abz", "\u00c9", "e\u0301 \u00c9"]), min_frequency=2)
    assert UNK_ID not in tokenizer.encode("abc\u00c9")
    assert UNK_ID in tokenizer.encode("z") and UNK_ID in tokenizer.encode("\u00e9")
    with pytest.raises(UserError, match=r"min_frequency = 9"):
        learned(kind, ["a b"], min_frequency=9)
