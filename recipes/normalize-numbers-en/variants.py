"""The ways in which people type one text: without commas, with a decimal comma, without hyphens, misspelled.

Each function draws at random; most texts stay as they are.
"""

import random
import re
from importlib import import_module
from typing import Any, Final

# The folder's name is not an identifier.
in_words: Any = import_module("attendant.recipes.normalize-numbers-en.words")

AND: Final = re.compile(
    rf"(?:hundred (?=(?:{'|'.join((*in_words.ONES[1:], *in_words.TENS[2:], *in_words.ORDINALS.values()))}))"
    rf"|(?:thousand|million) (?=(?:{'|'.join((*in_words.ONES[1:], *in_words.TENS[2:]))})(?:-\w+)?$))"
)
"""The places where people say `and`."""

ARTICLE: Final = re.compile(
    r"^one (?=(?:hundred|thousand|million|billion|trillion|dozen|dollar|euro|pound|buck|mile|kilometer|minute|day|week"
    r"|month|year|cup|foot)\b)"
)
"""A `one` that people also say as `a`."""

SCALE: Final = re.compile(rf"({'|'.join(in_words.SCALES[1:])}) (?=[\w-]+ hundred)")
"""The places where people write a comma."""

MISSPELLED: Final = {
    "forty": "fourty", "ninety": "ninty", "eighth": "eigth", "twelfth": "twelth", "fifth": "fith", "ninth": "nineth",
    "fourth": "forth", "hundred": "hundered",
}  # fmt: skip

GROUPS: Final = re.compile(r"\d{1,3}(?:,\d{3})+(?!\d)")
THOUSANDS: Final = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
MILLIONS: Final = re.compile(r"(?<![\d.,])\d{1,3},\d{3},\d{3}(?![\d.,])")
DECIMALS: Final = re.compile(r"(?<![\d.,])(\d[\d,]*)\.(\d{1,2}|\d{4,})(?![\d.])")
"""Numbers whose point people also write as a comma. With three decimals, the comma would be that of thousands."""


def typed(figures: str, generator: random.Random) -> str:
    """Returns figures as people type them: often without commas in thousands, rarely with spaces or apostrophes
    instead, in lakhs (`1,23,456`), or with points and a decimal comma (`1.234,5`, `1.234.567`).
    """
    chance = generator.random()
    if chance < 0.06:
        return GROUPS.sub(lambda number: _in_lakhs(number[0]), figures)
    if chance < 0.13:
        figures = MILLIONS.sub(lambda number: number[0].replace(",", "."), figures)
        return DECIMALS.sub(lambda number: f"{number[1].replace(',', '.')},{number[2]}", figures)
    return THOUSANDS.sub(generator.choices((",", "", " ", "'"), (45, 50, 3, 2))[0], figures)


def _in_lakhs(number: str) -> str:
    """Returns a number whose digits before the last three are in groups of two: `1,23,456`."""
    digits = number.replace(",", "")
    return f"{re.sub(r'(?<=[0-9])(?=(?:[0-9]{2})+$)', ',', digits[:-3])},{digits[-3:]}"


def heard(words: str, generator: random.Random) -> str:
    """Returns words as people write them: without hyphens, with `and`, with `a` for `one`, misspelled."""
    if generator.random() < 0.3:
        words = AND.sub(r"\g<0>and ", words)
    if generator.random() < 0.05:
        words = SCALE.sub(r"\1, ", words)
    words = words.replace("-", generator.choices(("-", " ", ""), (70, 28, 2))[0])
    if generator.random() < 0.3:
        words = ARTICLE.sub("a ", words)
    if generator.random() < 0.04:
        for right, wrong in MISSPELLED.items():
            words = words.replace(right, wrong)
    return words


def ended(text: str, generator: random.Random) -> str:
    """Returns a text, rarely with a sentence's end."""
    return f"{text}{generator.choice('..,!?')}" if text[-1] != "." and generator.random() < 0.03 else text
