"""Normalization of white space and invisible characters, which training and every way to ask a model share.

A recipe's tokenizers end their own normalizer with these steps, so a bundle describes them and other programs that read
its tokenizers apply them too. Tokenizers without them (of earlier versions, or imported) get them from the runtime.
"""

from collections.abc import Collection, Set
from typing import Final

from tokenizers import Regex, Tokenizer, normalizers
from tokenizers.normalizers import Normalizer

WHITE_SPACE: Final = frozenset(c for c in map(chr, range(0x3001)) if c.isspace())
"""Unicode's white space, and the separators U+001C to U+001F."""

INVISIBLE_TO_KEEP: Final = (
    r"\t-\r\x{1c}-\x{1f}\x{85}\x{600}-\x{605}\x{6dd}\x{70f}\x{890}\x{891}\x{8e2}\x{110bd}\x{110cd}"
)
"""Control characters that are white space, and format characters that are drawn, such as the Arabic number sign."""

JOINED: Final = (
    r"[[\p{L}\p{M}\p{So}\p{Sk}]&&[^\p{Latin}\p{Greek}\p{Cyrillic}\p{Armenian}\p{Georgian}\p{Hebrew}"
    r"\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}]]"
)
"""Characters that a joiner or non-joiner between two of them changes: scripts whose letters join, and emoji."""

APOSTROPHES: Final = "’‘‛ʼʻ′＇´ʹꞌ"
QUOTES: Final = "“”„‟«»‹›‚″＂〝〞〟"
DASHES: Final = "‐‑‒–—―−﹘﹣－"
PLAIN_SPELLINGS: Final = (("'", APOSTROPHES), ('"', QUOTES), ("-", DASHES))
"""ASCII characters, and the typographic ones that stand for them."""


def replace_any(characters: Collection[str], replacement: str) -> Normalizer:
    """Returns a step that replaces each of these characters."""
    return normalizers.Replace(Regex(f"[{_listed(characters)}]"), replacement)


def spacing(*, keep_inner: bool = False, kept: Set[str] = frozenset()) -> list[Normalizer]:
    """Returns the steps that leave no outer white space and nothing invisible.

    Control and format characters are removed: zero-width spaces, soft hyphens, byte order marks, direction marks. A
    joiner (U+200D) or non-joiner (U+200C) stays between letters of scripts that need it, such as Arabic and
    Devanagari, and within emoji; so do the tags of a flag.

    Args:
        keep_inner: white space within a text stays as it is written; otherwise each run of it becomes one space.
        kept: characters that stay as they are.
    """
    keeps = INVISIBLE_TO_KEEP + r"\x{200c}\x{200d}\x{e0020}-\x{e007f}" + _listed(kept)
    joiners = _listed({"\u200c", "\u200d"} - kept)
    patterns = [rf"[[\p{{Cc}}\p{{Cf}}\x{{34f}}\x{{3164}}\x{{ffa0}}]&&[^{keeps}]]"]
    patterns += [f"(?<!{JOINED})[{joiners}]", f"[{joiners}](?!{JOINED})"] if joiners else []
    patterns.append(r"(?<![\x{1f3f4}\x{e0020}-\x{e007f}])[\x{e0020}-\x{e007f}]+")
    steps: list[Normalizer] = [normalizers.Replace(Regex("|".join(patterns)), "")]
    outer = _listed(WHITE_SPACE)
    if keep_inner:
        return [*steps, normalizers.Replace(Regex(rf"\A[{outer}]+|[{outer}]+\z"), "")]
    inner = _listed(WHITE_SPACE - (kept - {" "}))
    return [*steps, normalizers.Replace(Regex(f"[{inner}]+"), " "), normalizers.Strip()]


def has_own_spacing(library: Tokenizer) -> bool:
    """Returns whether a tokenizer normalizes white space by itself: then only its own normalizer decides."""
    return library.normalizer is not None and library.normalizer.normalize_str(" a\n") == "a"


def spacing_of(library: Tokenizer, symbols: Collection[str], *, own: bool) -> Normalizer:
    """Returns the spacing that fits a tokenizer: what its texts look like to it.

    For a tokenizer without its own, characters that its training texts contained stay: white space in its vocabulary,
    and whatever its longer symbols contain. Typographic characters that it does not know become the ASCII ones that it
    knows.

    Args:
        symbols: of its vocabulary, without the special ones.
        own: whether it normalizes white space by itself.
    """
    if own:
        collapses = library.normalizer.normalize_str("a  b") == "a b"
        return normalizers.Sequence(spacing(keep_inner=not collapses))
    known = set().union(*symbols)
    kept = {character for symbol in symbols if len(symbol) > 1 for character in symbol} | (known & WHITE_SPACE)
    steps = spacing(kept={character for character in kept if not character.isprintable()})
    for plain, typographic in PLAIN_SPELLINGS:
        if plain in known and (unknown := set(typographic) - known):
            steps.append(replace_any(unknown, plain))
    return normalizers.Sequence(steps)


def _listed(characters: Collection[str]) -> str:
    """Returns the characters as the inside of a regular expression's class."""
    return "".join(rf"\x{{{ord(character):x}}}" for character in sorted(characters))
