"""Tests of generated data sets: reproducible and correct pairs, and no test item in the training split."""

import random
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from attendant.recipes.dates.data import FORMATS, SHORT_YEAR_FORMATS, write
from attendant.training.data.config import CorpusFiles, DataConfig
from attendant.training.data.fetch import fetch
from attendant.training.data.pairs import Pair, read_pairs


@pytest.fixture
def build(tmp_path: Path) -> Callable[[str], dict[str, list[Pair]]]:
    def build(name: str) -> dict[str, list[Pair]]:
        fetch(DataConfig(fetch=name, directory=str(tmp_path / name)), announce=print)  # type: ignore[arg-type]
        parts = ("train", "validation", "test")
        return {part: list(read_pairs(CorpusFiles(pairs=(f"{tmp_path}/{name}/{part}.tsv",)))) for part in parts}

    return build


@pytest.mark.parametrize(
    ("name", "step", "lengths", "first", "num_trained", "num_held_out"),
    [
        ("copy", 1, range(4, 13), "eecije", 4000, 200),
        ("reverse", -1, range(2, 7), "cgj", 4000, 200),
        ("backwards", -1, range(2, 21), "gplstw", 20_000, 1000),
    ],
)
def test_words_are_spelled_in_the_order_of_the_data_set(
    name: str,
    step: int,
    lengths: range,
    first: str,
    num_trained: int,
    num_held_out: int,
    build: Callable[[str], dict[str, list[Pair]]],
) -> None:
    parts = build(name)
    counts = {"train": num_trained, "validation": num_held_out, "test": num_held_out}
    assert {part: len(pairs) for part, pairs in parts.items()} == counts
    pairs = [pair for part in parts.values() for pair in part]
    assert all(pair.target.split() == list(pair.source)[::step] for pair in pairs)
    assert len({pair.source for pair in pairs}) == len(pairs)
    assert {len(pair.source) for pair in pairs} == set(lengths)
    assert pairs[0].source == first


def test_the_data_set_of_dates_has_unique_valid_targets(build: Callable[[str], dict[str, list[Pair]]]) -> None:
    parts = build("dates")
    assert {part: len(pairs) for part, pairs in parts.items()} == {"train": 12_000, "validation": 500, "test": 500}
    pairs = [pair for part in parts.values() for pair in part]
    assert len({pair.target for pair in pairs}) == len(pairs)
    assert all(date.fromisoformat(pair.target).isoformat() == pair.target for pair in pairs)
    assert Pair("THURSDAY 2ND DECEMBER 1920", "1920-12-02") in parts["train"]


class Chooses(random.Random):
    """A random generator that returns the given choices."""

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
def test_a_date_is_written_in_each_format(day: date, pattern: str, text: str) -> None:
    assert write(day, Chooses(pattern, str)) == text


def test_years_of_two_digits_are_of_one_century_only() -> None:
    generator = random.Random(1)
    days = [date(1998, 3, 3), date(1969, 3, 3), date(2070, 3, 3)]
    assert any("1998" not in write(days[0], generator) for _ in range(300))
    assert all(str(day.year) in write(day, generator) for day in days[1:] for _ in range(300))
    assert len(FORMATS + SHORT_YEAR_FORMATS) == len({*FORMATS, *SHORT_YEAR_FORMATS}) == 35
