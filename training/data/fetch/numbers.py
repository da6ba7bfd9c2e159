"""Numbers and dates, in figures and in words: `1,204` and `one thousand two hundred four`, either way.

English as spoken in America. Which way is wanted needs no symbol: a text in figures is to be said, one in words is to
be written. What is said in words has one form; what is read has several.
"""

import random
import re
from datetime import date
from pathlib import Path

from attendant.training.data.fetch.published import Announce, write_pairs
from attendant.training.data.fetch.toys import FIRST, LAST, MONTHS, ordinal_ending
from attendant.training.data.pairs import Pair

ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
SCALES = ("", "thousand", "million", "billion", "trillion")
ORDINALS = {
    "one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth",
    "twelve": "twelfth",
}  # fmt: skip
"""Those that are not made by an ending alone."""

MAX_DIGITS = 3 * len(SCALES)
MAX_DECIMALS = 6

NONZERO = "111123456789"
"""What digits are drawn from. As tens, 1 makes ten words and any other digit one: so there are more of it."""

TRAINED_WORDS = range(1, 21)
SPLITS = {
    "train": (TRAINED_WORDS, 300_000),
    "short": (TRAINED_WORDS, 10_000),
    "validation": (range(21, 22), 2_000),
    "test": (range(22, 100), 10_000),
}
"""file -> how many words its numbers take, and how many of them it has."""


def build_numbers(directory: Path, announce: Announce) -> None:
    """Numbers of up to 15 digits, and days, no two alike, each in one direction.

    They are split by length: how many words the number takes. Training has those of up to 20, validation of 21, the
    test of 22 and more. `short.tsv` is held out too, of the lengths that training has. Days take few words, so only
    these two have any.
    """
    generator = random.Random(23)
    taken: set[str] = set()
    for name, (lengths, count) in SPLITS.items():
        pairs: list[Pair] = []
        while len(pairs) < count:
            figures, words = _draw(generator)
            if words not in taken and num_spoken_words(words) in lengths:
                taken.add(words)
                pairs.append(_directed(figures, words, generator))
        write_pairs(directory / f"{name}.tsv", pairs)


def cardinal(number: int) -> str:
    """A whole number below 10**15 in words: `two hundred five thousand thirty-one`."""
    if number < 1000:
        return _below_thousand(number)
    words = []
    for index, scale in reversed(list(enumerate(SCALES))):
        if group := number // 1000**index % 1000:
            words += [_below_thousand(group), scale]
    return " ".join(words).rstrip()


def ordinal(number: int) -> str:
    """`two hundred thirty-first`."""
    before, last = re.fullmatch(r"(.*?)(\w+)", cardinal(number)).groups()  # type: ignore[union-attr]
    if last in ORDINALS:
        return before + ORDINALS[last]
    return before + (f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th")


def year(number: int) -> str:
    """A year from 1100 to 9999 as it is said: `nineteen oh five`, `two thousand five`, `twenty twelve`."""
    century, rest = divmod(number, 100)
    if century % 10 == 0 and rest < 10:
        return cardinal(number)
    if rest == 0:
        return f"{cardinal(century)} hundred"
    return f"{cardinal(century)} {'oh ' if rest < 10 else ''}{cardinal(rest)}"


def num_spoken_words(spoken: str) -> int:
    """How many words a spoken form has; `thirty-one` is two."""
    return len(re.findall(r"\w+", spoken))


def _below_thousand(number: int) -> str:
    hundreds, rest = divmod(number, 100)
    words = [ONES[hundreds], "hundred"] if hundreds else []
    if rest >= 20:
        words.append(TENS[rest // 10] + (f"-{ONES[rest % 10]}" if rest % 10 else ""))
    elif rest or not hundreds:
        words.append(ONES[rest])
    return " ".join(words)


def _draw(generator: random.Random) -> tuple[str, str]:
    """A value in figures, and in words."""
    (draw,) = generator.choices((_number, _ordinal, _decimal, _day), (6, 1, 1, 1))
    return draw(generator)


def _whole(generator: random.Random) -> int:
    """Any number of digits is as likely, and so is each share of zeros: so there are long numbers of few words."""
    share = generator.choice((0.1, 0.4, 0.7, 0.9))
    digits = "".join(
        "0" if generator.random() < share else generator.choice(NONZERO)
        for _ in range(generator.randint(0, MAX_DIGITS - 1))
    )
    return int(generator.choice(NONZERO) + digits) if generator.random() < 0.99 else 0


def _number(generator: random.Random) -> tuple[str, str]:
    number = _whole(generator)
    return _signed(f"{number:,}", cardinal(number), generator)


def _ordinal(generator: random.Random) -> tuple[str, str]:
    number = _whole(generator) or 1
    return f"{number:,}{ordinal_ending(number)}", ordinal(number)


def _decimal(generator: random.Random) -> tuple[str, str]:
    number = _whole(generator)
    decimals = "".join(generator.choices("0123456789", k=generator.randint(1, MAX_DECIMALS)))
    words = [cardinal(number), "point", *(ONES[int(digit)] for digit in decimals)]
    return _signed(f"{number:,}.{decimals}", " ".join(words), generator)


def _signed(figures: str, words: str, generator: random.Random) -> tuple[str, str]:
    return (f"-{figures}", f"minus {words}") if generator.random() < 0.2 else (figures, words)


def _day(generator: random.Random) -> tuple[str, str]:
    day = date.fromordinal(generator.randint(FIRST.toordinal(), LAST.toordinal()))
    return day.isoformat(), f"{MONTHS[day.month - 1]} {ordinal(day.day)}, {year(day.year)}"


def _directed(figures: str, words: str, generator: random.Random) -> Pair:
    """To be said or to be written, in one of the forms that a reader has to know."""
    if generator.random() < 0.5:
        return Pair(figures.replace(",", "") if generator.random() < 0.5 else figures, words)
    read = words
    for change in (_without_hyphens, _with_and, _day_first):
        if generator.random() < 0.3:
            read = change(read)
    return Pair(read, figures)


def _without_hyphens(words: str) -> str:
    return words.replace("-", " ")


def _with_and(words: str) -> str:
    return re.sub(r"hundred (?!thousand|\w+illion|point)", "hundred and ", words)


def _day_first(words: str) -> str:
    """`the third of March, ...`."""
    return re.sub(rf"^({'|'.join(MONTHS)}) ([^,]+)", r"the \2 of \1", words)
