"""Small tasks, which need no network and seconds to learn: made-up words to spell, and dates to read."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from itertools import islice
from pathlib import Path
from typing import TypeVar

from attendant.training.data.fetch.published import Announce, write_pairs
from attendant.training.data.pairs import Pair

T = TypeVar("T")

ALPHABET = "abcdefghij"
NUM_WORDS = {"train": 4000, "validation": 200, "test": 200}
NUM_DATES = {"train": 12_000, "validation": 500, "test": 500}
FIRST, LAST = date(1600, 1, 1), date(2199, 12, 31)

MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
ROMAN = ("I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII")
FORMATS = (
    "{d} {month} {y}", "{d} {mon} {y}", "{d}. {month} {y}", "{th} {month} {y}", "{th} of {month}, {y}",
    "the {th} of {month} {y}", "{month} {d}, {y}", "{mon} {d}, {y}", "{mon}. {d} {y}", "{month} {th}, {y}",
    "{month} the {th}, {y}", "{weekday}, {d} {month} {y}", "{weekday}, {month} {d}, {y}", "{weekday} {th} {month} {y}",
    "{day}, {d} {mon} {y}", "{day} {mon} {dd} {y}", "{weekday}, the {th} of {month} {y}", "{d}/{m}/{y}",
    "{dd}/{mm}/{y}", "{d}.{m}.{y}", "{dd}.{mm}.{y}", "{dd}-{mm}-{y}", "{dd}-{mon}-{y}", "{y}/{mm}/{dd}",
    "{y}.{mm}.{dd}", "{y}{mm}{dd}", "{y} {month} {d}", "{y}, {mon} {d}", "{d}.{roman}.{y}",
)  # fmt: skip
SHORT_YEAR_FORMATS = (
    "{d}/{m}/{yy}", "{dd}.{mm}.{yy}", "{d} {mon} '{yy}", "{mon} {d}, '{yy}", "{dd}-{mon}-{yy}",
    "{day} {d} {month} '{yy}",
)  # fmt: skip
SHORT_YEARS = range(1970, 2070)
CASES: tuple[Callable[[str], str], ...] = (str, str, str.lower, str.upper)


def build_copy(directory: Path, announce: Announce) -> None:
    """Words of 4 to 12 letters, spelled as they are: attention has only the diagonal to find; without it, it is a test
    of memory.
    """
    _build_spelling(directory, iter, seed=21, min_length=4, max_length=12)


def build_reverse(directory: Path, announce: Announce) -> None:
    """Words of 2 to 6 letters, spelled backwards."""
    _build_spelling(directory, reversed, seed=20, min_length=2, max_length=6)


def build_dates(directory: Path, announce: Announce) -> None:
    """From dates as people write them, `Tuesday, the 3rd of March 1998`, to ISO 8601, `1998-03-03`: random days, each
    written in one way. No day of the test has been seen in any.

    Days come before months where both are numbers. Two digits of a year are of 1970 to 2069.
    """
    generator = random.Random(22)
    days = _distinct(
        lambda: date.fromordinal(generator.randint(FIRST.toordinal(), LAST.toordinal())), sum(NUM_DATES.values())
    )
    # All days are drawn before any is written.
    _write(directory, NUM_DATES, [Pair(written(day, generator), day.isoformat()) for day in days])


def written(day: date, generator: random.Random) -> str:
    """A day in one of the formats, in one of the cases."""
    formats = FORMATS + SHORT_YEAR_FORMATS if day.year in SHORT_YEARS else FORMATS
    month, weekday = MONTHS[day.month - 1], WEEKDAYS[day.weekday()]
    text = generator.choice(formats).format(
        d=day.day,
        dd=f"{day.day:02}",
        th=f"{day.day}{ordinal_ending(day.day)}",
        m=day.month,
        mm=f"{day.month:02}",
        month=month,
        mon=month[:3],
        roman=ROMAN[day.month - 1],
        y=day.year,
        yy=f"{day.year % 100:02}",
        weekday=weekday,
        day=weekday[:3],
    )
    return generator.choice(CASES)(text)


def ordinal_ending(number: int) -> str:
    """`st` of 21, `th` of 11."""
    return "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")


def _build_spelling(
    directory: Path, spelled: Callable[[str], Iterable[str]], *, seed: int, min_length: int, max_length: int
) -> None:
    """Random words over ten letters; the target is the letters, spaced."""
    generator = random.Random(seed)
    words = _distinct(
        lambda: "".join(generator.choices(ALPHABET, k=generator.randint(min_length, max_length))),
        sum(NUM_WORDS.values()),
    )
    _write(directory, NUM_WORDS, [Pair(word, " ".join(spelled(word))) for word in words])


def _distinct(draw: Callable[[], T], count: int) -> list[T]:
    found: dict[T, None] = {}
    while len(found) < count:
        found[draw()] = None
    return list(found)


def _write(directory: Path, counts: Mapping[str, int], pairs: Sequence[Pair]) -> None:
    remaining = iter(pairs)
    for split, count in counts.items():
        write_pairs(directory / f"{split}.tsv", islice(remaining, count))
