"""Dates as people write them, `Tuesday, the 3rd of March 1998`, to ISO 8601, `1998-03-03`."""

import random
from calendar import day_abbr, day_name, month_abbr, month_name
from collections.abc import Callable
from datetime import date
from itertools import islice
from pathlib import Path

from attendant.training.data.fetch import Announce, Builder, write_pairs
from attendant.training.data.pairs import Pair

NUM_DATES = {"train": 12_000, "validation": 500, "test": 500}
FIRST, LAST = date(1600, 1, 1), date(2199, 12, 31)

ROMAN = ("I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII")
FORMATS = (
    "{d} {month} {y}", "{d} {mon} {y}", "{d}. {month} {y}", "{th} {month} {y}", "{th} of {month}, {y}",
    "the {th} of {month} {y}", "{month} {d}, {y}", "{mon} {d}, {y}", "{mon}. {d} {y}", "{month} {th}, {y}",
    "{month} the {th}, {y}", "{weekday}, {d} {month} {y}", "{weekday}, {month} {d}, {y}", "{weekday} {th} {month} {y}",
    "{day}, {d} {mon} {y}", "{day} {mon} {dd} {y}", "{weekday}, the {th} of {month} {y}", "{d}/{m}/{y}",
    "{dd}/{mm}/{y}", "{d}.{m}.{y}", "{dd}.{mm}.{y}", "{dd}-{mm}-{y}", "{dd}-{mon}-{y}", "{y}/{mm}/{dd}",
    "{y}.{mm}.{dd}", "{y}{mm}{dd}", "{y} {month} {d}", "{y}, {mon} {d}", "{d}.{roman}.{y}",
)  # fmt: skip
"""The day comes before the month if both are numbers."""

SHORT_YEAR_FORMATS = (
    "{d}/{m}/{yy}", "{dd}.{mm}.{yy}", "{d} {mon} '{yy}", "{mon} {d}, '{yy}", "{dd}-{mon}-{yy}",
    "{day} {d} {month} '{yy}",
)  # fmt: skip
SHORT_YEARS = range(1970, 2070)  # The years that are also written with two digits.
CASES: tuple[Callable[[str], str], ...] = (str, str, str.lower, str.upper)


def build(directory: Path, announce: Announce) -> None:
    """Writes random days, each in one format. No day of the test is in the training split, in any format."""
    generator = random.Random(22)
    days: dict[date, None] = {}
    while len(days) < sum(NUM_DATES.values()):
        days[date.fromordinal(generator.randint(FIRST.toordinal(), LAST.toordinal()))] = None
    remaining = iter(days)
    for split, count in NUM_DATES.items():
        pairs = [Pair(write(day, generator), day.isoformat()) for day in islice(remaining, count)]
        write_pairs(directory / f"{split}.tsv", pairs)


def write(day: date, generator: random.Random) -> str:
    """Returns a day in one of the formats and one of the cases."""
    formats = FORMATS + SHORT_YEAR_FORMATS if day.year in SHORT_YEARS else FORMATS
    text = generator.choice(formats).format(
        d=day.day,
        dd=f"{day.day:02}",
        th=f"{day.day}{ordinal_ending(day.day)}",
        m=day.month,
        mm=f"{day.month:02}",
        month=month_name[day.month],
        mon=month_abbr[day.month],
        roman=ROMAN[day.month - 1],
        y=day.year,
        yy=f"{day.year % 100:02}",
        weekday=day_name[day.weekday()],
        day=day_abbr[day.weekday()],
    )
    return generator.choice(CASES)(text)


def ordinal_ending(number: int) -> str:
    """Returns the ending of an ordinal in figures: `st` for 21, `th` for 11."""
    return "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")


DATA_SETS: dict[str, Builder] = {"dates": build}
