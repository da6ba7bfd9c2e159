"""Tests of numbers, dates, times and amounts in words, and of splits that share no unseen value."""

import random
from datetime import date
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from attendant.training.data.pairs import Pair

numbers = import_module("attendant.recipes.normalize-numbers-en.data")
times = import_module("attendant.recipes.normalize-numbers-en.times")
values = import_module("attendant.recipes.normalize-numbers-en.values")
variants = import_module("attendant.recipes.normalize-numbers-en.variants")
words = import_module("attendant.recipes.normalize-numbers-en.words")


@pytest.mark.parametrize(
    ("function", "number", "spoken"),
    [
        ("cardinal", 0, "zero"),
        ("cardinal", 21, "twenty-one"),
        ("cardinal", 40_715, "forty thousand seven hundred fifteen"),
        ("cardinal", 10**17 + 6, "one hundred quadrillion six"),
        ("ordinal", 1, "first"),
        ("ordinal", 1_020, "one thousand twentieth"),
        ("year", 1600, "sixteen hundred"),
        ("year", 1905, "nineteen oh five"),
        ("year", 1998, "nineteen ninety-eight"),
        ("year", 2100, "twenty-one hundred"),
        ("roman", 3814, "MMMDCCCXIV"),
    ],
)
def test_numbers_are_spoken(function: str, number: int, spoken: str) -> None:
    assert getattr(words, function)(number) == spoken


@pytest.mark.parametrize(
    ("value", "figures", "spoken"),
    [
        (values.signed("-", values.whole_number(7)), "-7", "minus seven"),
        (values.decimal(3, "05"), "3.05", "three point zero five"),
        (values.decimal(0, "5"), ".5", "zero point five"),
        (values.scaled("2.5", "million"), "2.5 million", "two point five million"),
        (values.percentage("50"), "50 %", "fifty percent"),
        (values.fraction(3, 4), "3/4", "three quarters"),
        (values.fraction(1, 2, 2), "2 1/2", "two and a half"),
        (values.money("$", 1204, 50), "$1,204.50", "one thousand two hundred four dollars and fifty cents"),
        (values.money("$", 0, 5), "5¢", "five cents"),
        (values.money("£", 3, 1), "£3.01", "three pounds and one penny"),
        (values.money("€", 20), "20 €", "twenty euros"),
        (values.scaled_money("$", "5", "million"), "$5 million", "five million dollars"),
        (times.time_of_day(14, 5), "14:05", "fourteen oh five"),
        (times.time_of_day(2, 30, "p.m."), "2:30pm", "two thirty p.m."),
        (times.time_of_day(2, 0, "p.m."), "2 pm", "two p.m."),
        (times.time_of_day(2, 0), "2:00", "two o'clock"),
        (times.calendar_date(date(2024, 5, 5)), "05/05/2024", "May fifth, twenty twenty-four"),
        (times.calendar_date(date(2024, 5, 5)), "5 May 2024", "May fifth, twenty twenty-four"),
        (times.day_of_month(5, 5), "May 5th", "May fifth"),
        (times.month_of_year(5, 2024), "May 2024", "May twenty twenty-four"),
        (times.in_year(2005), "in 2005", "in two thousand five"),
        (times.decade(1980), "1980s", "nineteen eighties"),
        (times.decade(80), "'80s", "eighties"),
        (values.single_digits("007"), "007", "zero zero seven"),
        (values.telephone(("555", "1234")), "555-1234", "five five five, one two three four"),
        (values.telephone(("212", "555", "1234"), "1"), "+1 (212) 555-1234",
         "plus one, two one two, five five five, one two three four"),
        (values.dotted((10, 168, 0, 1)), "10.168.0.1", "ten dot one hundred sixty-eight dot zero dot one"),
        (values.measure("5", "km"), "5km", "five kilometers"),
        (values.measure("20", "°C"), "20 °C", "twenty degrees Celsius"),
        (values.roman_numeral(14), "XIV", "fourteen"),
        (values.numbered(5), "No. 5", "number five"),
        (values.dozens(2), "2 dozen", "two dozen"),
        (values.fraction(2, 3), "2\N{FRACTION SLASH}3", "two thirds"),
        (values.numbers_in_order((10, 20, 30)), "10,20,30", "ten, twenty, thirty"),
        (times.duration((1, "hour"), (1, "minute")), "1h01", "one hour one minute"),
        (times.date_and_time(date(2022, 1, 15), 4, 45, "p.m."), "1/15/2022 4:45 pm",
         "January fifteenth, twenty twenty-two, four forty-five p.m."),
        (times.time_in_zone(6, 45, "p.m.", "EST"), "6:45 p.m. Eastern Standard Time", "six forty-five p.m. EST"),
        (times.nth_century(5, era="BC"), "5th century BC", "fifth century BC"),
        (values.fraction(1, 2, 2), "2½", "two and a half"),
        (values.scaled_money("$", "1.5", "million"), "$1.5M", "one point five million dollars"),
        (values.signed("-", values.money("$", 5)), "-$5", "minus five dollars"),
        (values.measure("3", "m²"), "3 square metres", "three square meters"),
        (values.halved_measure(0, 3, 4, "cup"), "3/4 cup", "three quarters of a cup"),
        (values.halved_measure(1, 1, 2, "h"), "1½ hours", "one and a half hours"),
        (values.height(5, 11), "5'11", "five feet eleven inches"),
        (values.interval(5, 10), "5-10", "five to ten"),
        (values.interval(5, 10, "%"), "5-10%", "five to ten percent"),
        (values.ratio(16, 9), "16:9", "sixteen to nine"),
        (times.time_of_day(12, 0), "12 o'clock", "twelve o'clock"),
        (times.time_of_day(17, 0), "17:00", "seventeen hundred hours"),
        (times.time_of_day(5, 0, "p.m."), "5 p.m", "five p.m."),
        (times.duration((1, "hour"), (30, "minute")), "1h 30m", "one hour thirty minutes"),
        (times.calendar_date(date(2024, 11, 26)), "26/11/2024", "November twenty-sixth, twenty twenty-four"),
        (times.calendar_date(date(1969, 5, 6)), "5/6/69", "May sixth, nineteen sixty-nine"),
        (times.calendar_date(date(2024, 11, 26), weekday=True), "Tue, Nov 26, 2024",
         "Tuesday, November twenty-sixth, twenty twenty-four"),
        (times.year_of_era(1250, "BC"), "1250 B.C.", "twelve fifty BC"),
        (times.day_of_month(5, 5, "Monday"), "Mon May 5", "Monday, May fifth"),
        (times.interval_of_times((9, 0, "a.m."), (5, 0, "p.m.")), "9am-5pm", "nine a.m. to five p.m."),
        (values.signed("-", values.money("$", 5)), "$-5", "minus five dollars"),
        (values.fraction(355, 113), "355/113", "three hundred fifty-five over one hundred thirteen"),
        (values.version((2, 0)), "v2.0", "version two dot zero"),
        (values.scaled_measure("93", "million", "mi"), "93 million miles", "ninety-three million miles"),
        (values.interval(2.5, 3), "2.5-3", "two point five to three"),
        (values.interval(1990, 1995), "1990-95", "nineteen ninety to nineteen ninety-five"),
        (values.telephone(("1", "800", "555", "0199")), "1 (800) 555-0199",
         "one, eight zero zero, five five five, zero one nine nine"),
        (values.money("€", 3, 99), "3,99 €", "three euros and ninety-nine cents"),
        (values.share(9, 10, "out of"), "9 out of 10", "nine out of ten"),
        (times.duration((1, "hour"), (30, "minute")), "1h30", "one hour thirty minutes"),
        (times.duration((1, "hour"), (52, "minute"), (3, "second")), "1:52:03",
         "one hour fifty-two minutes three seconds"),
        (times.interval_of_days(5, 5, 7), "May 5th-7th", "May fifth to seventh"),
        (times.interval_of_times((5, 0, "p.m."), (7, 30, "p.m.")), "5-7:30pm", "five p.m. to seven thirty p.m."),
        (times.decade(1920, "the "), "the 1920s", "the nineteen twenties"),
        (times.decade(1900), "1900s", "nineteen hundreds"),
        (times.in_year(1990, "since"), "since 1990", "since nineteen ninety"),
        (values.ordinal_number(5, "the "), "the 5th", "the fifth"),
        (values.power("2", 10), "2**10", "two to the tenth"),
        (values.power("10", 2), "10²", "ten squared"),
        (values.scientific("6.02", 23), "6.02e23", "six point zero two times ten to the twenty-third"),
        (values.scientific("1", -5), "1e-05", "one times ten to the minus five"),
        (values.scientific("3", 8), "3 × 10⁸", "three times ten to the eighth"),
        (values.single_digits("1" * 22), "1" * 22, " ".join(["one"] * 22)),
        (times.interval_of_clock_times((9, 0), (17, 0)), "09:00-17:00", "nine o'clock to seventeen hundred hours"),
        (times.interval_of_clock_times((8, 15), (14, 5)), "8:15 - 14:05", "eight fifteen to fourteen oh five"),
        (times.impossible_date((13, 26, 1991), "/"), "13/26/1991",
         "thirteen slash twenty-six slash nineteen ninety-one"),
        (values.product(("1920", "1080")), "1920×1080", "one thousand nine hundred twenty by one thousand eighty"),
        (values.product(("8.5", "11"), "in"), "8.5 x 11 inches", "eight point five by eleven inches"),
        (values.numbers_in_order((1, 2, 30)), "1, 2 and 30", "one, two, thirty"),
        (times.military_time(6, 30), "0630 hours", "oh six thirty hours"),
        (times.military_time(14, 5), "14:05 hours", "fourteen oh five hours"),
        (times.nth_century(21, "the "), "the 21st century", "the twenty-first century"),
        (values.money("₹", 500), "Rs. 500", "five hundred rupees"),
        (values.money("₹", 0, 50), "₹0.50", "fifty paise"),
        (values.thousands_of_dollars(5), "$5 grand", "five grand"),
        (values.measure("2", "year"), "2 yrs", "two years"),
        (times.impossible_date((2, 29, 2023), "/"), "02/29/2023",
         "two slash twenty-nine slash twenty twenty-three"),
        (times.time_in_zone(5, 18, "p.m.", "EST"), "5:18 pm EST", "five eighteen p.m. EST"),
        (times.time_in_zone(14, 5, "", "UTC"), "14:05 UTC", "fourteen oh five UTC"),
        (times.date_and_time(date(2024, 5, 6), 14, 5), "2024-05-06T14:05",
         "May sixth, twenty twenty-four, fourteen oh five"),
        (times.date_and_time(date(2024, 5, 6), 3, 30, "p.m."), "May 6, 2024 at 3:30 p.m.",
         "May sixth, twenty twenty-four, three thirty p.m."),
        (times.impossible_date((2, 30, 95), "-"), "02-30-95", "two dash thirty dash ninety-five"),
    ],
)  # fmt: skip
def test_figures_are_spoken(value: Any, figures: str, spoken: str) -> None:
    assert figures in value.figures and value.spoken == spoken


def test_times_on_the_dial_that_could_be_ranges_are_left_out() -> None:
    spoken = {figures: value.spoken for value in times.dial(9, 55) for figures in value.figures}
    assert spoken["5 minutes to 10"] == "five minutes to ten" and "5 to 10" not in spoken
    assert [value.figures for value in times.dial(1, 30)] == [("half past 1",)]


@pytest.mark.parametrize(
    ("value", "heard", "written"),
    [
        (values.whole_number(1100), "eleven hundred", "1,100"),
        (values.signed("-", values.whole_number(7)), "negative seven", "-7"),
        (values.fraction(3, 4), "three fourths", "3/4"),
        (values.money("$", 5, 50), "five dollars fifty cents", "$5.50"),
        (times.time_of_day(2, 45), "quarter to three", "2:45"),
        (times.time_of_day(2, 30, "p.m."), "half past two pm", "2:30 p.m."),
        (times.calendar_date(date(1984, 5, 3)), "the third of May, nineteen eighty-four", "1984-05-03"),
        (times.bare_year(1984), "nineteen eighty-four", "1984"),
        (values.single_digits("5057"), "five oh five seven", "5057"),
        (values.fraction(1, 3), "a third", "1/3"),
        (values.fraction(500, 1000), "five hundred thousandths", "500/1000"),
        (values.scaled("2.5", "million"), "two and a half million", "2.5 million"),
        (values.scaled_money("$", "1.5", "billion"), "a billion and a half dollars", "$1.5 billion"),
        (values.dozens(1), "one dozen", "12"),
        (values.colloquial_money("$", 20), "twenty bucks", "$20"),
        (values.share(1, 5, "in"), "one in five", "1 in 5"),
        (values.halved_measure(0, 1, 2, "h"), "half an hour", "1/2 hour"),
        (values.halved_measure(1, 1, 2, "h"), "an hour and a half", "1 1/2 hours"),
        (values.height(5, 11), "five foot eleven", "5'11\""),
        (values.interval(13, 20), "thirteen to twenty", "13-20"),
        (times.time_of_day(3, 40), "twenty to four", "3:40"),
        (times.time_of_day(11, 50, "p.m."), "ten to midnight", "11:50 p.m."),
        (times.time_of_day(12, 5, "p.m."), "five past noon", "12:05 p.m."),
        (times.time_of_day(17, 0), "seventeen hundred hours", "17:00"),
        (times.duration((2, "hour"), (5, "minute"), (40, "second")), "two hours, five minutes and forty seconds",
         "2 hours 5 minutes 40 seconds"),
        (times.decade(1980), "nineteen-eighties", "1980s"),
        (values.interval(3, 0), "three nil", "3-0"),
        (values.telephone(("310", "555", "0123")), "three one zero five five five, zero one two three", "310-555-0123"),
        (values.telephone(("1", "800", "555", "0172")), "one eight hundred five five five zero one seven two",
         "1-800-555-0172"),
        (times.duration((1, "hour"), (30, "minute")), "an hour and thirty minutes", "1 hour 30 minutes"),
        (values.whole_number(2450), "twenty-four hundred fifty", "2,450"),
        (values.fraction(3, 4), "three over four", "3/4"),
        (values.single_digits("007"), "double oh seven", "007"),
        (values.measure("60", "mph"), "sixty miles an hour", "60 mph"),
        (times.month_of_year(6, 2024), "June two thousand twenty-four", "June 2024"),
        (times.calendar_date(date(2024, 11, 26), weekday=True),
         "Tuesday, the twenty-sixth of November twenty twenty-four", "2024-11-26"),
        (values.ordinal_number(5, "the "), "the fifth", "the 5th"),
        (times.military_time(6, 30), "zero six thirty hours", "6:30"),
        (times.military_time(6, 30), "oh six thirty", "6:30"),
        (times.nth_century(15, "the "), "the fifteenth century", "the 15th century"),
        (values.thousands_of_dollars(5), "five grand", "$5,000"),
        (values.money("₹", 3, 1), "three rupees and one paisa", "₹3.01"),
        (times.impossible_date((13, 26, 1991), "/"), "thirteen slash twenty-six slash nineteen ninety-one",
         "13/26/1991"),
        (values.power("10", 6), "ten to the sixth power", "10^6"),
        (values.power("10", -3), "ten to the negative three", "10^-3"),
        (values.product(("2", "4")), "two by four", "2x4"),
        (values.numbers_in_order((7, 8, 9)), "seven, eight and nine", "7, 8, 9"),
        (times.time_in_zone(3, 0, "p.m.", "ET"), "three p.m. ET", "3:00 p.m. ET"),
        (times.date_and_time(date(2024, 5, 6), 14, 5), "May sixth, twenty twenty-four at fourteen oh five",
         "2024-05-06 14:05"),
        (values.scientific("2", 5), "two times ten to the power of five", "2×10^5"),
        (times.interval_of_clock_times((9, 30), (10, 0)), "from nine thirty to ten o'clock", "9:30-10:00"),
        (times.time_in_zone(6, 45, "p.m.", "ET"), "six forty-five p.m. Eastern Time", "6:45 p.m. ET"),
        (times.year_of_era(753, "BC"), "seven fifty-three BC", "753 BC"),
        (times.bare_year(1066), "ten sixty-six", "1066"),
        (values.dotted((127, 0, 0, 1)), "one twenty-seven dot zero dot zero dot one", "127.0.0.1"),
    ],
)  # fmt: skip
def test_words_are_written(value: Any, heard: str, written: str) -> None:
    assert heard in value.words and value.written == written


@pytest.mark.parametrize(
    ("value", "forms"),
    [
        # 1984 and 505 are numbers, `fourteen oh five` is a year, `five` is 5, and `five to ten` is 9:55.
        (times.bare_year(1984), {"1984"}),
        (values.single_digits("505"), {"505", "five oh five"}),
        (times.time_of_day(14, 5), {"fourteen oh five"}),
        (values.roman_numeral(5), {"five"}),
        (values.interval(5, 10), {"five to ten"}),
        (values.whole_number(1950), {"nineteen hundred fifty"}),
        (values.interval(2001, 2002), {"2001-02"}),
        (values.ratio(3, 1), {"three to one"}),
        (times.interval_of_clock_times((14, 5), (15, 0)), {"fourteen oh five to fifteen hundred hours"}),
        (values.single_digits("1" * 21), {"1" * 21}),
        # The month comes first in figures with slashes, if it can.
        (times.calendar_date(date(2024, 5, 6)), {"6/5/2024", "06/05/2024", "6-05-2024"}),
        # The last group of a number has three digits.
        (values.numbers_in_order((1, 200, 30)), {"1,200,30"}),
        # A quarter to twelve p.m. could be in the morning.
        (times.time_of_day(11, 45, "p.m."), {"quarter to twelve p.m.", "quarter to twelve pm"}),
    ],
)
def test_forms_that_mean_another_value_are_left_out(value: Any, forms: set[str]) -> None:
    assert not forms & {*value.figures, *value.words}


def test_variants_of_inputs_are_those_that_people_write() -> None:
    heard = {variants.heard("one hundred twenty-one thousand", random.Random(seed)) for seed in range(200)}
    assert {"a hundred and twenty one thousand", "one hundred twenty-one thousand"} <= heard
    # No `and` before a word that is not a number.
    kilometers = {variants.heard("one hundred kilometers", random.Random(seed)) for seed in range(50)}
    assert kilometers >= {"one hundred kilometers", "a hundred kilometers"}
    assert not [each for each in kilometers if "and" in each]
    typed = {variants.typed("$1,204,000.50", random.Random(seed)) for seed in range(999)}
    assert typed == {
        "$1,204,000.50", "$1204000.50", "$1 204 000.50", "$1'204'000.50", "$12,04,000.50", "$1.204.000,50",
    }  # fmt: skip
    assert "1.204.000" in {variants.typed("1,204,000", random.Random(seed)) for seed in range(99)}
    # With three decimals, a comma would be that of thousands; addresses and dates have no decimals.
    for figures in ("1.204", "10.0.0.1", "5.6.2024", "555.123.4567"):
        assert {variants.typed(figures, random.Random(seed)) for seed in range(99)} == {figures}
    scaled = {variants.heard("one million two hundred thousand", random.Random(seed)) for seed in range(200)}
    assert {"one million, two hundred thousand"} <= scaled
    assert {variants.ended("2 p.m.", random.Random(seed)) for seed in range(200)} == {"2 p.m."}
    assert {variants.ended("5", random.Random(seed)) for seed in range(500)} == {"5", "5.", "5,", "5!", "5?"}


def test_minutes_past_twelve_are_not_called_midnight() -> None:
    readings = times.time_of_day(12, 12, "a.m.").words
    assert "twelve minutes past midnight" in readings
    assert not [each for each in readings if each.startswith("midnight")]


def test_years_that_could_be_times_are_not_read_without_a_word() -> None:
    years = {value.spoken for value, _ in numbers.small_values() if value.words == (value.spoken,)}
    assert "ten sixty-six" in years
    assert "ten thirty" not in years


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


def test_every_form_has_all_of_its_value(files: dict[str, list[Pair]]) -> None:
    """A form without its last part ends with a separator."""
    incomplete = [pair for pairs in files.values() for pair in pairs if pair.source.strip() != pair.source]
    assert incomplete == [] and all(pair.target == pair.target.strip() for pair in files["train"])


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
        assert (str(number), words.cardinal(number)) in trained
        assert (words.cardinal(number), str(number)) in trained or "-" in words.cardinal(number) or number > 100
