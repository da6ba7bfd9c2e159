"""Numbers, dates, times and amounts in words; and splits, none of which shares an unseen value with another."""

import random
from datetime import date
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from attendant.training.data.pairs import Pair

numbers = import_module("attendant.recipes.normalize-numbers-en.data")


@pytest.mark.parametrize(
    ("function", "number", "words"),
    [
        ("cardinal", 0, "zero"),
        ("cardinal", 14, "fourteen"),
        ("cardinal", 21, "twenty-one"),
        ("cardinal", 100, "one hundred"),
        ("cardinal", 40_715, "forty thousand seven hundred fifteen"),
        ("cardinal", 3_000_000_110, "three billion one hundred ten"),
        ("cardinal", 10**17 + 6, "one hundred quadrillion six"),
        ("cardinal", 10**6 - 1, "nine hundred ninety-nine thousand nine hundred ninety-nine"),
        ("ordinal", 1, "first"),
        ("ordinal", 12, "twelfth"),
        ("ordinal", 31, "thirty-first"),
        ("ordinal", 1_020, "one thousand twentieth"),
        ("ordinal", 2_000_089, "two million eighty-ninth"),
        ("year", 1600, "sixteen hundred"),
        ("year", 1905, "nineteen oh five"),
        ("year", 1998, "nineteen ninety-eight"),
        ("year", 2009, "two thousand nine"),
        ("year", 2100, "twenty-one hundred"),
        ("roman", 1994, "MCMXCIV"),
        ("roman", 3814, "MMMDCCCXIV"),
    ],
)
def test_spoken_numbers(function: str, number: int, words: str) -> None:
    assert getattr(numbers, function)(number) == words


@pytest.mark.parametrize(
    ("value", "figures", "spoken"),
    [
        (numbers._number(7, "-"), "−7", "minus seven"),
        (numbers._number(7, "+"), "+7", "plus seven"),
        (numbers._decimal(3, "05"), "3.05", "three point zero five"),
        (numbers._decimal(0, "5"), ".5", "zero point five"),
        (numbers._scaled("2.5", "million"), "2.5 million", "two point five million"),
        (numbers._percentage("50"), "50 %", "fifty percent"),
        (numbers._fraction(3, 4), "3/4", "three quarters"),
        (numbers._fraction(1, 2), "1/2", "one half"),
        (numbers._fraction(1, 2, 2), "2 1/2", "two and a half"),
        (numbers._money("$", 1204, 50), "$1,204.50", "one thousand two hundred four dollars and fifty cents"),
        (numbers._money("$", 1), "1 dollar", "one dollar"),
        (numbers._money("$", 0, 5), "5¢", "five cents"),
        (numbers._money("£", 3, 1), "£3.01", "three pounds and one penny"),
        (numbers._money("€", 20), "20 €", "twenty euros"),
        (numbers._money("¥", 500), "¥500", "five hundred yen"),
        (numbers._scaled_money("$", "5", "million"), "$5 million", "five million dollars"),
        (numbers._time(14, 5), "14:05", "fourteen oh five"),
        (numbers._time(2, 30, "p.m."), "2:30pm", "two thirty p.m."),
        (numbers._time(2, 0, "p.m."), "2 pm", "two p.m."),
        (numbers._time(2, 0), "2:00", "two o'clock"),
        (numbers._date(date(2024, 5, 5)), "05/05/2024", "May fifth, twenty twenty-four"),
        (numbers._date(date(2024, 5, 5)), "5 May 2024", "May fifth, twenty twenty-four"),
        (numbers._day(5, 5), "May 5th", "May fifth"),
        (numbers._month(5, 2024), "May 2024", "May twenty twenty-four"),
        (numbers._in_year(2005), "in 2005", "in two thousand five"),
        (numbers._decade(1980), "1980s", "nineteen eighties"),
        (numbers._decade(80), "'80s", "eighties"),
        (numbers._digits("007"), "007", "zero zero seven"),
        (numbers._telephone(("555", "1234")), "555-1234", "five five five, one two three four"),
        (numbers._telephone(("212", "555", "1234"), "1"), "+1 (212) 555-1234",
         "plus one, two one two, five five five, one two three four"),
        (numbers._dotted((10, 168, 0, 1)), "10.168.0.1", "ten dot one hundred sixty-eight dot zero dot one"),
        (numbers._measure("5", "km"), "5km", "five kilometers"),
        (numbers._measure("1", "kg"), "1 kg", "one kilogram"),
        (numbers._measure("20", "°C"), "20 °C", "twenty degrees Celsius"),
        (numbers._measure("60", "mph"), "60 mph", "sixty miles per hour"),
        (numbers._roman(14), "XIV", "fourteen"),
        (numbers._numbered(5), "No. 5", "number five"),
    ],
)  # fmt: skip
def test_figures_are_spoken(value: Any, figures: str, spoken: str) -> None:
    assert figures in value.figures and value.spoken == spoken


@pytest.mark.parametrize(
    ("value", "words", "written"),
    [
        (numbers._number(1100), "eleven hundred", "1,100"),
        (numbers._number(7, "-"), "negative seven", "-7"),
        (numbers._fraction(3, 4), "three fourths", "3/4"),
        (numbers._money("$", 5, 50), "five dollars fifty cents", "$5.50"),
        (numbers._time(2, 45), "quarter to three", "2:45"),
        (numbers._time(2, 30, "p.m."), "half past two pm", "2:30 p.m."),
        (numbers._date(date(1984, 5, 3)), "the third of May, nineteen eighty-four", "1984-05-03"),
        (numbers._year(1984), "nineteen eighty-four", "1984"),
        (numbers._digits("505"), "five oh five", "505"),
        (numbers._percentage("10"), "ten per cent", "10%"),
    ],
)
def test_words_are_written(value: Any, words: str, written: str) -> None:
    assert words in value.words and value.written == written


@pytest.mark.parametrize(
    "value", [numbers._year(1984), numbers._digits("505"), numbers._time(14, 5), numbers._roman(5)]
)
def test_forms_that_mean_another_value_are_left_out(value: Any) -> None:
    # 1984 and 505 are numbers, `fourteen oh five` is a year, and `five` is 5.
    assert not {"1984", "505"} & set(value.figures)
    assert not {"fourteen oh five", "five"} & set(value.words)


def test_inputs_that_people_write() -> None:
    heard = {numbers._heard("one hundred twenty-one thousand", random.Random(seed)) for seed in range(200)}
    assert {"a hundred and twenty one thousand", "one hundred twenty-one thousand"} <= heard
    # No `and` before a word that is no number.
    assert not [
        words
        for words in (numbers._heard("one hundred kilometers", random.Random(s)) for s in range(50))
        if "and" in words
    ]
    typed = {numbers._typed("$1,204,000.50", random.Random(seed)) for seed in range(20)}
    assert typed == {"$1,204,000.50", "$1204000.50"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Pair]]:
    folder = tmp_path_factory.mktemp("numbers")
    with pytest.MonkeyPatch.context() as patch:
        for name, size in {
            "EXHAUSTIVE": 200,
            "MAX_ROMAN": 50,
            "NUM_TRAINED": 40_000,
            "NUM_VALIDATED": 5,
            "NUM_TESTED": 40,
        }.items():
            patch.setattr(numbers, name, size)
        numbers.build(folder, print)
    return {path.stem: _read(path) for path in folder.iterdir()}


def _read(path: Path) -> list[Pair]:
    return [Pair(*line.split("\t")) for line in path.read_text().splitlines()]


def test_no_input_has_two_outputs(files: dict[str, list[Pair]]) -> None:
    outputs: dict[str, str] = {}
    for pairs in files.values():
        for pair in pairs:
            assert outputs.setdefault(pair.source.casefold(), pair.target) == pair.target


def test_unseen_values_are_held_out_in_both_directions(files: dict[str, list[Pair]]) -> None:
    trained = {text for pair in files["train"] for text in (pair.source.casefold(), pair.target.casefold())}
    for name, value_class in numbers.CLASSES.items():
        assert files[f"test-{name}"]
        if not value_class.few:
            assert not [pair for pair in files[f"test-{name}"] if pair.source.casefold() in trained]
    assert len(files["test"]) == sum(len(files[f"test-{name}"]) for name in numbers.CLASSES)


def test_small_cardinals_are_all_trained_in_both_directions(files: dict[str, list[Pair]]) -> None:
    trained = {(pair.source, pair.target) for pair in files["train"]}
    for number in range(200):
        assert (str(number), numbers.cardinal(number)) in trained
        assert (numbers.cardinal(number), str(number)) in trained or "-" in numbers.cardinal(number) or number > 100
