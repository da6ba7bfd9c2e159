"""The steps that a recipe's `normalize` names: spellings that a model does not tell apart.

They are the `tokenizers` library's, so that a bundle's tokenizer files contain them.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, get_args

from tokenizers import Regex, normalizers
from tokenizers.normalizers import Normalizer

from attendant.runtime.bundle.tokenizer import APOSTROPHES, DASHES, QUOTES, replace_any, spacing

NormalizationName = Literal[
    "apostrophes", "quotes", "drop_quotes", "dashes", "nfc", "nfkc", "strip_accents", "lowercase"
]

ORDER: Final[tuple[NormalizationName, ...]] = get_args(NormalizationName)
"""The order in which the steps are applied. NFKC decomposes some apostrophes, so these come first."""

STEPS: Final[Mapping[NormalizationName, Sequence[Normalizer]]] = {
    "apostrophes": [replace_any(APOSTROPHES, "'")],
    "quotes": [replace_any(QUOTES, '"')],
    "drop_quotes": [replace_any(QUOTES + '"', "")],
    "dashes": [replace_any(DASHES, "-")],
    "nfc": [normalizers.NFC()],
    "nfkc": [normalizers.NFKC()],
    "strip_accents": [normalizers.NFD(), normalizers.StripAccents(), normalizers.NFC()],
    "lowercase": [
        normalizers.Lowercase(),
        # The library lower-cases one character at a time: İ becomes i and a combining dot, and every Σ a σ.
        normalizers.Replace("i\u0307", "i"),
        normalizers.Replace(Regex(r"(?<=[\p{L}\p{M}])σ(?![\p{L}\p{M}])"), "ς"),
    ],
}

WORD_START: Final = "▁"
"""What bpe writes for the space before a word (U+2581)."""


def in_order(names: Iterable[NormalizationName]) -> tuple[NormalizationName, ...]:
    """Returns the names in the order in which their steps are applied, each once."""
    return tuple(sorted(set(names), key=ORDER.index))


def normalization_steps(
    names: Iterable[NormalizationName], *, keep_spaces: bool, marks_words: bool
) -> list[Normalizer]:
    """Returns the steps of a tokenizer's normalizer; those for white space come last, because NFKC makes some.

    Args:
        keep_spaces: white space within a text stays as it is written.
        marks_words: the tokenizer writes WORD_START for a space. One in a text is a space too: no tokenizer could
            tell them apart.
    """
    steps = [step for name in in_order(names) for step in STEPS[name]]
    steps += [normalizers.Replace(WORD_START, " ")] * marks_words
    return [*steps, *spacing(keep_inner=keep_spaces)]


def with_normalize(table: Any) -> Any:
    """Returns a recipe's table with `normalize` where an earlier version had `lowercase` and `nfc`.

    Raises:
        ValueError: it has both, or a value that is not true or false.
    """
    if not isinstance(table, Mapping) or table.keys().isdisjoint(("lowercase", "nfc")):
        return table
    former = {name: value for name, value in table.items() if name in ("lowercase", "nfc")}
    for name, value in former.items():
        if not isinstance(value, bool):
            raise ValueError(f"{name} = {value!r}: must be true or false")
        if "normalize" in table:
            raise ValueError(
                f"normalize takes the place of {name} = {str(value).lower()}: leave {name} out, and write the names of "
                "all steps into normalize"
            )
    chosen = (former.get("nfc", True) and "nfc", former.get("lowercase", False) and "lowercase")
    others = {name: value for name, value in table.items() if name not in former}
    return others | {"normalize": [name for name in chosen if name]}
