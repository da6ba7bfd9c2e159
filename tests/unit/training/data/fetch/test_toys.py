"""The tasks that need no network: the same pairs each time, right, and no test that was trained."""

import random
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from attendant.training.data.config import CorpusFiles
from attendant.training.data.fetch import FETCHERS
from attendant.training.data.fetch.published import publish
from attendant.training.data.fetch.toys import FORMATS, SHORT_YEAR_FORMATS, written
from attendant.training.data.pairs import Pair, read_pairs


@pytest.fixture
def build(tmp_path: Path) -> Callable[[str], dict[str, list[Pair]]]:
    def build(name: str) -> dict[str, list[Pair]]:
        publish(tmp_path / name, name, FETCHERS[name], announce=print)
        parts = ("train", "validation", "test")
        return {part: list(read_pairs(CorpusFiles(tsv=str(tmp_path / name / f"{part}.tsv")))) for part in parts}

    return build


def test_copy(build: Callable[[str], dict[str, list[Pair]]]) -> None:
    parts = build("copy")
    assert {part: len(pairs) for part, pairs in parts.items()} == {"train": 4000, "validation": 200, "test": 200}
    every = [pair for pairs in parts.values() for pair in pairs]
    assert all(pair.target.split() == list(pair.source) for pair in every)
    assert len({pair.source for pair in every}) == len(every)
    assert {len(pair.source) for pair in every} == set(range(4, 13))


def test_dates(build: Callable[[str], dict[str, list[Pair]]]) -> None:
    parts = build("dates")
    assert {part: len(pairs) for part, pairs in parts.items()} == {"train": 12_000, "validation": 500, "test": 500}
    every = [pair for pairs in parts.values() for pair in pairs]
    assert len({pair.target for pair in every}) == len(every)
    assert all(date.fromisoformat(pair.target).isoformat() == pair.target for pair in every)
    assert Pair("THURSDAY 2ND DECEMBER 1920", "1920-12-02") in parts["train"]


class Chooses(random.Random):
    """Takes the choices that it was told."""

    def __init__(self, *choices: object) -> None:
        super().__init__(0)
        self._choices = iter(choices)

    def choice(self, seq):  # type: ignore[no-untyped-def]
        wanted = next(self._choices)
        assert wanted in seq
        return wanted


@pytest.mark.parametrize(
    ("day", "pattern", "text"),
    [
        (date(1998, 3, 3), "{weekday}, the {th} of {month} {y}", "Tuesday, the 3rd of March 1998"),
        (date(2004, 2, 29), "{dd}/{mm}/{y}", "29/02/2004"),
        (date(1712, 11, 11), "{month} {th}, {y}", "November 11th, 1712"),
        (date(2011, 8, 22), "{mon} {d}, '{yy}", "Aug 22, '11"),
        (date(1801, 6, 1), "{d}.{roman}.{y}", "1.VI.1801"),
        (date(2007, 9, 13), "{y}{mm}{dd}", "20070913"),
    ],
)
def test_formats(day: date, pattern: str, text: str) -> None:
    assert written(day, Chooses(pattern, str)) == text


def test_two_digits_of_a_year_are_of_one_century_only() -> None:
    generator = random.Random(1)
    days = [date(1998, 3, 3), date(1969, 3, 3), date(2070, 3, 3)]
    short = [any("98" in (text := written(days[0], generator)) and "1998" not in text for _ in range(300))]
    short += [all(str(day.year) in written(day, generator) for _ in range(300)) for day in days[1:]]
    assert short == [True, True, True]
    assert len(FORMATS + SHORT_YEAR_FORMATS) == len({*FORMATS, *SHORT_YEAR_FORMATS}) == 35
