"""Tests of tokenizers: ids and texts, refused files, white space and invisible characters."""

import base64
import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as LibraryTokenizer

from attendant.runtime.bundle.tokenizer import (
    BOS_ID,
    EOS_ID,
    MAX_GROWTH,
    MAX_INSERTIONS,
    PAD_ID,
    SPECIAL_TOKENS,
    UNK_ID,
    Tokenizer,
    UnknownTokenError,
    check_content,
    has_own_spacing,
    spacing,
)
from attendant.training.data.tokenization import TokenizerConfig, TokenizerKind, train_tokenizer
from tests.bundles import sound_tokenizer, word_level


def words() -> Tokenizer:
    return sound_tokenizer(["HH", "AH", "L", "OW"])


def characters(symbols: str, *, longer: tuple[str, ...] = ()) -> Tokenizer:
    """Returns a tokenizer of characters without a normalizer, as earlier versions wrote it."""
    library = word_level([*symbols, *longer])
    library.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    library.decoder = decoders.Fuse()
    return Tokenizer(library)


def pieces() -> Tokenizer:
    symbols = [*SPECIAL_TOKENS, "▁", "a", "b", "▁a", "▁ab"]
    model = models.BPE(
        {token: index for index, token in enumerate(symbols)}, [("▁", "a"), ("▁a", "b")], unk_token="<unk>"
    )
    library = LibraryTokenizer(model)
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    return Tokenizer(library)


@pytest.mark.parametrize(
    ("tokenizer", "text", "tokens"),
    [
        (words(), "HH AH L OW", ["HH", "AH", "L", "OW"]),
        (characters("ab"), "abba", ["a", "b", "b", "a"]),
        (pieces(), "ab a", ["▁ab", "▁a"]),
    ],
)
def test_decoding_an_encoded_text_restores_it(tokenizer: Tokenizer, text: str, tokens: list[str]) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.tokens_of(ids) == tokens
    assert tokenizer.ids_of(tokens) == ids
    assert tokenizer.decode([BOS_ID, *ids, EOS_ID, PAD_ID]) == text
    assert tokenizer.encode_batch([text, text]) == [ids, ids]


@pytest.mark.parametrize("literal", ["<pad>", "<s>", "</s>", "<unk>", "ZZ"])
def test_text_never_gives_a_special_symbol(literal: str) -> None:
    assert words().encode(f"HH {literal} OW") == [4, UNK_ID, 7]
    assert words().encode_batch([f"HH {literal} OW"]) == [[4, UNK_ID, 7]]


@pytest.mark.parametrize("token", ["<pad>", "<s>", "</s>", "ZZ", ""])
def test_special_and_unknown_tokens_of_a_caller_are_refused(token: str) -> None:
    with pytest.raises(UnknownTokenError, match="at position 1") as caught:
        words().ids_of(["HH", token])
    assert caught.value.positions == [1] and repr(token) in str(caught.value)


def test_unk_is_accepted_and_shown() -> None:
    assert words().ids_of(["HH", "<unk>"]) == [4, UNK_ID]
    assert words().decode([4, UNK_ID]) == "HH <unk>"


def test_an_invalid_tokenizer_file_is_refused() -> None:
    with pytest.raises(ValueError, match="not a tokenizer file"):
        Tokenizer.from_text("{}")
    moved = json.loads(words().to_text())
    moved["model"]["vocab"].update({"<s>": EOS_ID, "</s>": BOS_ID})
    with pytest.raises(ValueError, match="must hold <s> as id 2"):
        Tokenizer.from_text(json.dumps(moved))


def longest_known_text(tokenizer: Tokenizer, num_tokens: int, separator: str = "") -> str:
    """Returns the longest symbol, repeated and fully decomposed."""
    longest = max((tokenizer.tokens_of([i])[0] for i in range(UNK_ID + 3, tokenizer.vocabulary_size)), key=len)
    return unicodedata.normalize("NFD", separator.join([longest.replace("▁", " ")] * num_tokens)).strip()


@pytest.mark.parametrize("kind", ["character", "word", "bpe"])
def test_no_text_within_the_token_limit_exceeds_the_character_limit(kind: TokenizerKind) -> None:
    """Covers U+1F82, which decomposes into four characters; no character decomposes into more."""
    texts = ["ᾂᾂ abc ᾂᾂᾂ", "ᾂᾂ ab ᾂᾂᾂ", "abc ᾂ"]
    tokenizer = train_tokenizer(TokenizerConfig(tokenizer=kind, vocabulary_size=30), texts)
    text = longest_known_text(tokenizer, 5, " " if kind == "word" else "")
    assert len(tokenizer.encode(text)) <= 6
    assert len(text) <= tokenizer.max_characters(len(tokenizer.encode(text)))
    if kind != "word":
        # Every longer text has more tokens.
        for filler in ("ᾂ", "a", "\u0301", " ", "中", "aᾂ "):
            long = unicodedata.normalize("NFD", filler * 1000)[: tokenizer.max_characters(5) + 1]
            assert len(long.strip()) < tokenizer.max_characters(5) or len(tokenizer.encode(long)) > 5


def test_a_bounded_cache_does_not_change_the_encoding() -> None:
    for tokenizer in (pieces(), words(), characters("ab")):
        before = tokenizer.encode("ab a")
        tokenizer.bound_cache(1)
        assert tokenizer.encode("ab a") == before


SOUND = json.loads(Path("models/g2p-en/source_tokenizer.json").read_text())


def replace(content: str, **pattern: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(steps)}


def with_normalizer(normalizer: Any) -> str:
    return json.dumps(SOUND | {"normalizer": normalizer})


def precompiled(text: str) -> dict[str, Any]:
    """Returns a normalizer whose map points to a text."""
    content = (8).to_bytes(4, "little") + bytes(8) + text.encode() + b"\0"
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(content).decode()}


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "an unknown type": ("'Unheard' is not one of", {"normalizer": {"type": "Unheard"}}),
    "a map to long texts": ("Precompiled makes 25 characters of one", {"normalizer": precompiled("b" * 25)}),
    "a map that is none": ("Precompiled is damaged", {"normalizer": {"type": "Precompiled"}}),
    "a map and expansions": ("Precompiled with NFKC", {"normalizer": sequence(precompiled("b"), {"type": "NFKC"})}),
    "a type that panics": ("'FixedLength'", {"pre_tokenizer": {"type": "FixedLength", "length": 0}}),
    "one that adds symbols": ("post_processor", {"post_processor": {"type": "TemplateProcessing"}}),
    "more for less": ("by 2", {"normalizer": sequence({"type": "NFC"}, replace("xx", String="x"))}),
    "more for an expression": ("by 2", {"normalizer": replace("xx", Regex="x")}),
    "something for nothing": ("by 1", {"normalizer": replace("x", String="")}),
    "a long beginning": ("prepends", {"normalizer": {"type": "Prepend", "prepend": "a" * 99}}),
    "many insertions": ("Replace", {"normalizer": sequence(*[replace("x", Regex="(?=x)")] * (MAX_INSERTIONS + 1))}),
    "many expansions": ("NFKC", {"normalizer": sequence(*[{"type": "NFKC"}] * 2)}),
    "many steps": ("components", {"normalizer": sequence(*[{"type": "Strip"}] * 99)}),
    "groups that repeat": ("repeats a group", {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+b"}}}),
    "no pattern": ("no pattern", {"decoder": {"type": "Replace", "pattern": "x", "content": "x"}}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_components_are_refused(name: str) -> None:
    words, parts = REFUSED[name]
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        check_content(json.dumps(SOUND | parts))


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": {"type": "Sequence", "normalizers": 5}},
        {"normalizer": {"type": ["NFC"]}},
        {"normalizer": {"type": "Replace", "content": "x"}},
        {"normalizer": {"type": "Replace", "pattern": {"Regex": 5}, "content": "x"}},
        {"normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": None}},
        {"normalizer": {"type": "Prepend", "prepend": 5}},
        {"decoder": {"type": "Sequence", "decoders": 5}},
    ],
    ids=json.dumps,
)
def test_components_with_missing_fields_or_fields_of_other_types_are_refused(parts: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a tokenizer file"):
        Tokenizer.from_text(json.dumps(SOUND | parts))


def test_insertions_by_an_expression_are_limited() -> None:
    doubling = sequence(*[replace("q", Regex="(?=q)")] * MAX_INSERTIONS)
    tokenizer = Tokenizer.from_text(with_normalizer(doubling))
    with pytest.raises(ValueError, match=f"more than {MAX_GROWTH} characters of 'q'"):
        tokenizer.check_encoding()


@pytest.mark.parametrize("name", [str(path) for path in sorted(Path("models").glob("*/*_tokenizer.json"))])
def test_tokenizers_of_models_are_accepted(name: str) -> None:
    Tokenizer.from_file(Path(name)).check_encoding()


SPACED = [
    "ab cd\n", "ab cd\r\n", "\tab cd", " ab cd ", "\ufeffab cd", "ab\u00a0cd", "ab  cd", "ab \t cd", "ab\ncd",
    "ab\u2009cd", "ab\u202fcd", "ab\u3000cd", "a\u200bb cd", "a\u00adb cd", "ab \u200b cd", "ab cd\u200e", "a\x00b cd",
    "ab\u2028cd", "\u2066ab cd\u2069", "a\u2060b cd", "ab\x85cd", "ab cd\u3164", "a\u200db c\u200cd", "ab cd\U000e0041",
]  # fmt: skip


@pytest.mark.parametrize(("text", "plain"), [("e\u00ad\u0301", "\xe9"), ("Σ\u00adΣ\u200bΑ", "ΣΣΑ"), ("ab\u3164", "ab")])
def test_invisible_characters_do_not_prevent_normalization(text: str, plain: str) -> None:
    """Covers a letter and its accent, a Σ that is not the last letter, and a filler that NFKC replaces by a letter."""
    config = TokenizerConfig(tokenizer="character", normalize=("nfkc", "lowercase"))
    tokenizer = train_tokenizer(config, [plain])
    assert tokenizer.encode(text) == tokenizer.encode(plain)


FAMILY = "\U0001f469\u200d\u2764\ufe0f\u200d\U0001f468"
FLAG = "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"


@pytest.mark.parametrize("text", SPACED, ids=ascii)
def test_white_space_and_invisible_characters_make_no_difference(text: str) -> None:
    former = characters("abcd ")
    assert former.tokens_of(former.encode(text)) == list("ab cd")
    for kind in ("character", "word", "bpe"):
        tokenizer = train_tokenizer(TokenizerConfig(tokenizer=kind), ["ab cd"])  # type: ignore[arg-type]
        assert tokenizer.encode(text) == tokenizer.encode("ab cd") and UNK_ID not in tokenizer.encode(text)
        assert tokenizer.encode_batch([text]) == [tokenizer.encode("ab cd")]
        assert len(tokenizer.words_of(text)) == len(tokenizer.encode(text))
        assert Tokenizer.from_text(tokenizer.to_text()).encode(text) == tokenizer.encode("ab cd")


@pytest.mark.parametrize(
    "text", [FAMILY, FLAG, "\u0645\u06cc\u200c\u062e", "\u0915\u094d\u200d\u0937", "\u0600a"], ids=ascii
)
def test_format_characters_with_a_visible_effect_are_kept(text: str) -> None:
    """Covers joiners of emoji, Persian and Devanagari, a flag's tags, and a visible format character."""
    step = normalizers.Sequence(spacing())
    assert step.normalize_str(f" {text}\n") == text
    symbols = "".join(dict.fromkeys(text))
    assert characters(symbols).decode(characters(symbols).encode(text)) == text


def test_blank_texts_have_no_tokens() -> None:
    for tokenizer in (characters("ab "), train_tokenizer(TokenizerConfig(tokenizer="bpe"), ["ab"])):
        for text in ("", " ", "\ufeff\n", "\u200b", "\x00"):
            assert tokenizer.encode(text) == []


def test_white_space_in_an_earlier_vocabulary_stays() -> None:
    tokenizer = characters("ab \u00a0")
    assert tokenizer.tokens_of(tokenizer.encode(" a\u00a0 b")) == ["a", "\u00a0", " ", "b"]


def test_invisible_characters_within_known_symbols_stay() -> None:
    """Checks that a soft hyphen is dropped if it is a symbol by itself, and kept if it is part of a symbol."""
    alone = characters("ab\u00ad")
    assert alone.encode("a\u00adb") == alone.encode("ab")
    within = characters("ab", longer=("a\u00adb",))
    assert within.spaced("a\u00adb") == "a\u00adb"


def test_unknown_typographic_marks_are_replaced_by_plain_ones() -> None:
    tokenizer = characters("dont'\"-")
    for text in ("don’t", "“don't”", "don–t", "don‘t"):
        assert UNK_ID not in tokenizer.encode(text)
    knows = characters("dont'’")
    assert knows.tokens_of(knows.encode("don’t")) == list("don’t")
    assert UNK_ID in characters("dont").encode("don’t")


def test_a_tokenizer_that_strips_keeps_its_own_spacing() -> None:
    library = word_level(["a", "\u00ad"])
    library.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    library.normalizer = normalizers.Strip()
    assert has_own_spacing(library)
    assert Tokenizer(library).encode(" a\u00ad\n") == [4, 5]


def test_pieces_of_a_text_have_the_marks_that_normalization_composes() -> None:
    tokenizer = train_tokenizer(TokenizerConfig(tokenizer="character"), ["ab cd"])
    pieces = ["a\u0308", "b", " ", "r\u030c", " ", "\u1112\u1161\u11ab", "a\u0304\u0301"]
    assert tokenizer.words_of("".join(pieces)) == [*pieces[:-1], "a\u0304", "\u0301"]
    assert tokenizer.words_of("a \u0308") == ["a", " ", "\u0308"]


@pytest.mark.parametrize("kind", ["character", "word", "bpe"])
def test_pieces_of_a_text_have_no_invisible_characters(kind: TokenizerKind) -> None:
    tokenizer = train_tokenizer(TokenizerConfig(tokenizer=kind, normalize=("nfc", "lowercase")), ["ab cd"])
    assert "".join(tokenizer.words_of("\ufeff A\u200bB\u00a0\u00a0XY ")).replace(" ", "") == "ABXY"
