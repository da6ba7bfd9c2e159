"""White space and invisible characters: none that people send by accident changes what a model reads."""

import pytest
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as LibraryTokenizer

from attendant.runtime.bundle.tokenizer import SPECIAL_TOKENS, UNK_ID, Tokenizer, has_own_spacing, spacing
from attendant.training.data.tokenization import TokenizerConfig, TokenizerKind, train_tokenizer

SPACED = [
    "ab cd\n", "ab cd\r\n", "\tab cd", " ab cd ", "\ufeffab cd", "ab\u00a0cd", "ab  cd", "ab \t cd", "ab\ncd",
    "ab\u2009cd", "ab\u202fcd", "ab\u3000cd", "a\u200bb cd", "a\u00adb cd", "ab \u200b cd", "ab cd\u200e", "a\x00b cd",
    "ab\u2028cd", "\u2066ab cd\u2069", "a\u2060b cd", "ab\x85cd", "ab cd\u3164", "a\u200db c\u200cd", "ab cd\U000e0041",
]  # fmt: skip

FAMILY = "\U0001f469\u200d\u2764\ufe0f\u200d\U0001f468"
FLAG = "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"


def characters(symbols: str, *, longer: tuple[str, ...] = ()) -> Tokenizer:
    """A tokenizer without a normalizer, as earlier versions wrote it."""
    vocabulary = {token: index for index, token in enumerate([*SPECIAL_TOKENS, *symbols, *longer])}
    library = LibraryTokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    library.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    library.decoder = decoders.Fuse()
    return Tokenizer(library)


@pytest.mark.parametrize("text", SPACED, ids=ascii)
def test_white_space_and_what_is_not_seen_make_no_difference(text: str) -> None:
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
def test_what_changes_the_look_of_a_text_stays(text: str) -> None:
    """Joiners of emoji, Persian and Devanagari, a flag's tags, a sign that is drawn."""
    step = normalizers.Sequence(spacing())
    assert step.normalize_str(f" {text}\n") == text
    symbols = "".join(dict.fromkeys(text))
    assert characters(symbols).decode(characters(symbols).encode(text)) == text


def test_kinds_without_anything_to_say_are_empty() -> None:
    for tokenizer in (characters("ab "), train_tokenizer(TokenizerConfig(tokenizer="bpe"), ["ab"])):
        for text in ("", " ", "\ufeff\n", "\u200b", "\x00"):
            assert tokenizer.encode(text) == []


def test_white_space_that_an_earlier_tokenizer_knows_stays() -> None:
    tokenizer = characters("ab \u00a0")
    assert tokenizer.tokens_of(tokenizer.encode(" a\u00a0 b")) == ["a", "\u00a0", " ", "b"]


def test_invisible_characters_within_known_symbols_stay() -> None:
    """A soft hyphen alone in a vocabulary is noise of its data; within a word it belongs to the word."""
    alone = characters("ab\u00ad")
    assert alone.encode("a\u00adb") == alone.encode("ab")
    within = characters("ab", longer=("a\u00adb",))
    assert within.spaced("a\u00adb") == "a\u00adb"


def test_typographic_marks_that_an_earlier_tokenizer_does_not_know_are_the_plain_ones() -> None:
    tokenizer = characters("dont'\"-")
    for text in ("don’t", "“don't”", "don–t", "don‘t"):
        assert UNK_ID not in tokenizer.encode(text)
    knows = characters("dont'’")
    assert knows.tokens_of(knows.encode("don’t")) == list("don’t")
    assert UNK_ID in characters("dont").encode("don’t")


def test_a_tokenizer_that_strips_decides_for_itself() -> None:
    library = LibraryTokenizer(
        models.WordLevel({token: i for i, token in enumerate([*SPECIAL_TOKENS, "a", "\u00ad"])}, unk_token="<unk>")
    )
    library.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    library.normalizer = normalizers.Strip()
    assert has_own_spacing(library)
    assert Tokenizer(library).encode(" a\u00ad\n") == [4, 5]


@pytest.mark.parametrize("kind", ["character", "word", "bpe"])
def test_pieces_of_a_text_have_no_invisible_characters(kind: TokenizerKind) -> None:
    tokenizer = train_tokenizer(TokenizerConfig(tokenizer=kind, normalize=("nfc", "lowercase")), ["ab cd"])
    assert "".join(tokenizer.words_of("\ufeff A\u200bB\u00a0\u00a0XY ")).replace(" ", "") == "ABXY"
