"""A recipe's `normalize`: which spellings a model does not tell apart."""

import pytest
from pydantic import ValidationError

from attendant.runtime.bundle.tokenizer import UNK_ID, Tokenizer, check_content
from attendant.training.data.tokenization import ORDER, SourceConfig, TokenizerConfig, TokenizerKind, train_tokenizer

KINDS: tuple[TokenizerKind, ...] = ("character", "word", "bpe")


def trained(kind: TokenizerKind, texts: list[str], *names: str, **options: object) -> Tokenizer:
    config = TokenizerConfig.model_validate({"tokenizer": kind, "normalize": names} | options)
    return Tokenizer.from_text(train_tokenizer(config, texts).to_text())


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("apostrophes", ["don't", "don’t", "don‘t", "donʼt", "don＇t", "don´t"]),
        ("quotes", ['"face"', "“face”", "„face“", "«face»", "＂face＂"]),
        ("drop_quotes", ["face", '"face"', "“face”", "«face»"]),
        ("dashes", ["a-b", "a–b", "a—b", "a−b", "a‑b"]),
        ("nfc", ["café", "cafe\u0301"]),
        ("nfkc", ["fine 12", "ﬁne １２", "ｆine 12"]),
        ("strip_accents", ["cafe", "café", "cafe\u0301"]),
        ("lowercase", ["istanbul οδος ab", "İstanbul ΟΔΟΣ AB", "istanbul Οδος Ab"]),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_each_step_makes_spellings_one(kind: TokenizerKind, name: str, texts: list[str]) -> None:
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
    assert trained("character", ["a"], *names).to_text() == trained("character", ["a"], *names[::-1]).to_text()


def test_what_is_not_named_is_told_apart() -> None:
    tokenizer = trained("character", ["Été’'"])
    assert tokenizer.decode(tokenizer.encode("Été’'")) == "Été’'"


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
    with pytest.raises(ValidationError, match="nfc = 1: must be true or false"):
        names(nfc=1)
    with pytest.raises(ValidationError, match="strip_accents"):
        names(normalize=["upper"])


@pytest.mark.parametrize("options", [{}, {"byte_fallback": True}, {"keep_spaces": True}])
def test_what_a_recipe_asks_for_is_accepted_in_a_bundle(options: dict[str, object]) -> None:
    tokenizer = trained("bpe", ["abcdefgh ijk"] * 9, *ORDER, vocabulary_size=300, **options)
    check_content(tokenizer.to_text())
    tokenizer.check_encoding()
