"""Numbers, dates, times, amounts and their like, in figures and in words: `$5.50` and `five dollars and fifty cents`.

American English. The direction needs no symbol: a text in figures is to be spoken, a text in words is to be written.
The classes are those of written text that is read aloud (Sproat and Jaitly 2016). values.py and times.py have the forms
of each value, variants.py the ways to type one, and this file the values that are trained and tested.
"""

import random
from calendar import day_name, isleap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from importlib import import_module
from itertools import combinations, product
from pathlib import Path
from typing import Any, Final, TypeAlias
from zlib import crc32

from attendant.recipes.dates.data import FIRST, LAST
from attendant.training.data.fetch import Announce, Builder, write_pairs
from attendant.training.data.pairs import Pair

# The folder's name is not an identifier.
times: Any = import_module("attendant.recipes.normalize-numbers-en.times")
values: Any = import_module("attendant.recipes.normalize-numbers-en.values")
Value: TypeAlias = Any  # values.Value
SCALES: Final = import_module("attendant.recipes.normalize-numbers-en.words").SCALES

MAX_DIGITS: Final = 3 * len(SCALES)
MAX_DECIMALS: Final = 10
EXHAUSTIVE: Final = 10_000
"""All cardinals and ordinals below it are in the training split, in both directions."""

NONZERO: Final = "111123456789"
"""Digits are drawn from it. As tens, 1 makes ten words and every other digit makes one, so 1 is drawn more often."""

MAX_ROMAN: Final = 3999
MAX_DOZENS: Final = 20
MAX_YEAR: Final = 2099
DECADES: Final = (*range(20, 100, 10), *range(1300, 2100, 10))
ERAS: Final = ("AD", "BC", "CE", "BCE")
CENTURIES: Final = range(1600, 2200, 100)
ROUND: Final = 0.1
"""Share of dates and months whose year ends in two zeros: it is read in another way, and rare otherwise."""

BEFORE_YEARS: Final = ("in", "since", "by", "before", "after", "the year")
DIGITS: Final = "0123456789"
ZONES: Final = (
    *("UTC", "GMT", "EST", "EDT", "ET", "CST", "CDT", "CT", "MST", "MDT", "MT", "PST", "PDT", "PT"),
    *("CET", "CEST", "BST", "IST", "JST", "AEST"),
)
SIZES: Final = ("in", "ft", "m", "cm", "mm", "px")
"""The units of sizes: `8.5 x 11 in`."""

COUNTRIES: Final = ("1", "1", "44", "49", "33", "34", "39", "61", "81", "86", "91", "353")
"""Codes of telephone numbers."""

DURATIONS: Final = (
    {"hour": 24, "minute": 59, "second": 59},
    {"day": 30, "hour": 23},
    {"day": 30, "hour": 23, "minute": 59},
    {"week": 12, "day": 6},
    {"month": 11, "day": 30},
    {"year": 30, "month": 11},
)
DURATION_WEIGHTS: Final = (6, 2, 1, 1, 1, 2)
"""Durations of hours and minutes, and of minutes and seconds, are all in the training split."""

NUM_TRAINED: Final = 900_000
NUM_VALIDATED: Final = 150
NUM_TESTED: Final = 1_000
"""Pairs of each class in the validation split and in the test split."""


def build(directory: Path, announce: Announce) -> None:
    """Writes train.tsv, validation.tsv, test.tsv, and a test-CLASS.tsv for each class.

    Unseen values are held out by a checksum, in both directions and in all of their forms. Small values are all in the
    training split, and so are the classes of few values, whose test files hold trained values. In all files together,
    no input has two outputs.
    """
    generator = random.Random(23)
    outputs: dict[str, str] = {}
    trained: list[Pair] = []
    small: set[str] = set()
    for value, repetitions in small_values():
        small.add(value.spoken)
        trained += _consistent(value.plain_pairs(), outputs)
        for _ in range(repetitions):
            trained += _consistent(value.pairs(generator), outputs)
    names, weights = list(CLASSES), [each.weight for each in CLASSES.values()]
    while len(trained) < NUM_TRAINED:
        (name,) = generator.choices(names, weights)
        value = CLASSES[name].draw(generator)
        if CLASSES[name].few or value.spoken in small or not _is_held_out(value):
            trained += _consistent(value.pairs(generator), outputs)
    generator.shuffle(trained)
    write_pairs(directory / "train.tsv", trained)
    validation: list[Pair] = []
    test: list[Pair] = []
    for name, value_class in CLASSES.items():
        pairs: dict[str, Pair] = {}
        # Some classes have fewer pairs in all.
        for _ in range(40 * NUM_TESTED):
            if len(pairs) >= NUM_VALIDATED + NUM_TESTED:
                break
            value = value_class.draw(generator)
            if value_class.few or (_is_held_out(value) and value.spoken not in small):
                pairs |= {pair.source.casefold(): pair for pair in _consistent(value.pairs(generator), outputs)}
        tested = list(pairs.values())[NUM_VALIDATED : NUM_VALIDATED + NUM_TESTED]
        validation += list(pairs.values())[:NUM_VALIDATED]
        test += tested
        write_pairs(directory / f"test-{name}.tsv", tested)
    write_pairs(directory / "validation.tsv", validation)
    write_pairs(directory / "test.tsv", test)


def _is_held_out(value: Value) -> bool:
    return crc32(value.spoken.encode()) % 8 == 0


def _consistent(pairs: Iterable[Pair], outputs: dict[str, str]) -> list[Pair]:
    """Returns the pairs without those whose source has another output already."""
    return [pair for pair in pairs if outputs.setdefault(pair.source.casefold(), pair.target) == pair.target]


def _whole(generator: random.Random, max_digits: int = MAX_DIGITS) -> int:
    """Draws a whole number: each number of digits is as likely as any other, and so is each share of zeros."""
    share = generator.choice((0.1, 0.4, 0.7, 0.9))
    digits = "".join(
        "0" if generator.random() < share else generator.choice(NONZERO)
        for _ in range(generator.randint(0, max_digits - 1))
    )
    return int(generator.choice(NONZERO) + digits) if generator.random() < 0.99 else 0


def small_values() -> Iterator[tuple[Value, int]]:
    """Yields the values that the training split has all, each with a number of repetitions."""
    yield from _small_numbers()
    # `80s` is a decade, and not seconds.
    yield from _small_times()
    yield from _small_amounts()


def _small_numbers() -> Iterator[tuple[Value, int]]:
    for number in range(EXHAUSTIVE):
        yield values.whole_number(number), 12 if number < 100 else 4 if number < 1000 else 2
        yield values.ordinal_number(number), 6 if number < 100 else 1
        if number < EXHAUSTIVE // 10:
            yield values.ordinal_number(number, "the "), 4 if number < 100 else 1
    for exponent, digit in product(range(3, MAX_DIGITS), range(1, 10)):
        yield values.whole_number(digit * 10**exponent), 8
    for number in range(101):
        yield from ((values.signed(sign, values.whole_number(number)), 3) for sign in "+-")
        yield values.numbered(number), 2
        yield from ((values.colloquial_money(symbol, number), 2) for symbol in "$£")
        yield values.thousands_of_dollars(number + 1), 3
        yield values.scaled(str(number), "thousand"), 2
    for number in range(1, MAX_ROMAN + 1):
        yield values.roman_numeral(number), 12 if number <= 100 else 3
        yield from ((values.scaled(str(number), scale), 1) for scale in SCALES[2:5])
    for number, tenths in product(range(21), range(1, 10)):
        amount = f"{number}.{tenths}"
        yield values.decimal(number, str(tenths)), 2
        yield values.percentage(amount), 1
        yield from ((values.scaled(amount, scale), 1) for scale in ("million", "billion"))
        for symbol, scale in product(values.CURRENCIES, ("million", "billion")):
            yield values.scaled_money(symbol, amount, scale), 1 if number else 6
    for number in range(EXHAUSTIVE // 10):
        yield values.single_digits(f"{number:03}"), 1
        if number < 100:
            yield from ((values.signed(sign, values.decimal(0, f"{number:02}")), 2) for sign in ("", "-", "+"))
            yield values.single_digits(f"{number:02}"), 3
    yield from ((values.single_digits("0" * length), 8) for length in range(2, 10))
    yield from ((values.version((number,)), 4) for number in range(21))
    yield from ((values.version(parts), 3) for parts in product(range(6), range(11)))
    yield from ((values.scaled(str(number), "hundred"), 4) for number in range(1, 10))
    yield from ((value, 40) for value in values.phrases())
    yield from ((values.dozens(count), 10) for count in range(1, MAX_DOZENS + 1))
    yield from ((values.interval(first, last), 2 if last else 8) for first, last in product(range(21), repeat=2))
    yield from ((values.power(str(base), exponent), 2) for base, exponent in product(range(2, 21), range(2, 21)))
    yield from ((values.product((str(first), str(last))), 2) for first, last in product(range(1, 21), repeat=2))
    for exponent in (*range(-20, -1), *range(2, 101)):
        yield values.power("10", exponent), 4
        yield from ((values.scientific(str(amount), exponent), 1) for amount in range(1, 10))
    for last in (*range(2, 21), *range(30, 110, 10), 1000, 10_000, 100_000, 1_000_000):
        for first, between in product(range(1, min(last, 21)), ("in", "out of")):
            yield values.share(first, last, between), 8 if first == 1 else 2


def _small_amounts() -> Iterator[tuple[Value, int]]:
    for number in range(101):
        yield from ((values.money(symbol, number), 3) for symbol in (*values.CURRENCIES, values.YEN))
        yield from ((values.measure(str(number), unit), 1) for unit in values.UNITS)
        yield from ((values.signed("-", values.measure(str(number), unit)), 2) for unit in ("°C", "°F", "°"))
        if number <= 10:
            yield from ((values.signed("-", values.measure(str(number), unit)), 2) for unit in values.UNITS)
        yield values.percentage(str(number)), 4
        yield from ((values.signed(sign, values.percentage(str(number))), 1) for sign in "+-")
        yield values.signed("-", values.money("$", number)), 2
        yield from ((values.money(symbol, number, 99), 1) for symbol in values.CURRENCIES)
    for cents, symbol in product(range(1, 100), values.CURRENCIES):
        yield values.money(symbol, 0, cents), 12 if cents == 1 else 2
    for whole, cents, symbol in product(range(1, 21), range(1, 100), values.CURRENCIES):
        yield values.money(symbol, whole, cents), 1
    for denominator in range(2, 21):
        for numerator in range(1, denominator):
            yield values.fraction(numerator, denominator), 40 if denominator <= 4 else 8
            if denominator <= 10:
                yield values.signed("-", values.fraction(numerator, denominator)), 8 if denominator <= 4 else 2
    for whole, (numerator, denominator) in product(range(1, 13), values.GLYPHS):
        yield from ((values.signed(sign, values.fraction(numerator, denominator, whole)), 2) for sign in ("", "-"))
    for whole, (numerator, denominator), unit in product(range(6), ((1, 2), (1, 4), (3, 4)), values.HALVED_UNITS):
        yield values.halved_measure(whole, numerator, denominator, unit), 4 if whole < 2 else 1
    # `five to ten` is a time.
    for (first, last), unit in product(combinations((1, 2, 3, 4, 5, 10, 15, 20, 25, 30), 2), values.UNITS):
        yield values.interval(first, last, unit), 2
    for feet, inches in product(range(1, 21), range(12)):
        yield values.height(feet, inches), 12 if 3 < feet < 8 else 4


def _small_times() -> Iterator[tuple[Value, int]]:
    for hour, minute in product(range(24), range(60)):
        # A quarter of an hour has more forms than another time, and a full hour has most.
        repetitions = 30 if minute == 0 else 24 if minute % 5 == 0 else 6
        if hour:
            yield times.military_time(hour, minute), 6 if minute == 0 else 2
        yield times.time_of_day(hour, minute), repetitions
        if 1 <= hour <= 12:
            yield from ((value, 2) for value in times.dial(hour, minute))
            yield from ((times.time_of_day(hour, minute, half), repetitions + 2) for half in ("a.m.", "p.m."))
    for hours, minutes in product(range(1, 25), range(1, 60)):
        yield times.duration((hours, "hour"), (minutes, "minute")), 4 if minutes % 15 == 0 else 3
    for minutes, seconds in product(range(1, 60), repeat=2):
        yield times.duration((minutes, "minute"), (seconds, "second")), 4 if seconds == 30 else 1
    for month, day in product(range(1, 13), range(1, 32)):
        if day <= (29 if month == 2 else 30 if month in (4, 6, 9, 11) else 31):
            yield times.day_of_month(month, day), 8
            yield from ((times.day_of_month(month, day, weekday), 2) for weekday in day_name)
    for number in range(1000, 2100):
        # `ten thirty` is a time.
        if number >= 1300 or number % 100 >= 60:
            yield times.bare_year(number), 2
        yield from ((times.in_year(number, before), 2 if before == "in" else 1) for before in BEFORE_YEARS)
    for number, era in product(range(1, MAX_YEAR + 1), ERAS):
        yield times.year_of_era(number, era), 1 if number % 100 else 8
    yield from ((times.decade(number, the), 8 if number > 100 else 30) for number in DECADES for the in ("", "the "))
    for number, the in product(range(1, 31), ("", "the ")):
        yield times.nth_century(number, the), 8
        yield from ((times.nth_century(number, the, era), 2) for era in ERAS)


def _digits(generator: random.Random, count: int) -> str:
    """Draws digits: of all ten, or of fewer, which makes runs of one digit."""
    pool = generator.choice((DIGITS, DIGITS, generator.choices(DIGITS, k=3), f"00{generator.choice(DIGITS)}"))
    return "".join(generator.choices(pool, k=count))


def _amount(generator: random.Random, max_digits: int = 4, decimals: float = 0.3) -> str:
    number = f"{_whole(generator, max_digits):,}"
    if generator.random() < decimals / 4:
        # People have words for it: `two and a half million`.
        number += ".5"
    elif generator.random() < decimals:
        number += "." + "".join(generator.choices(DIGITS, k=generator.choice((1, 1, 2, 2, 3))))
    return number


def _draw_signed(generator: random.Random) -> Value:
    sign = generator.choice("--+")
    # `+12125551234` is a telephone number.
    return values.signed(sign, values.whole_number(_whole(generator, 9 if sign == "+" else MAX_DIGITS)))


def _draw_decimal(generator: random.Random) -> Value:
    value = values.decimal(_whole(generator, 12), _digits(generator, generator.randint(1, MAX_DECIMALS)))
    return values.signed(generator.choice(("", "", "", "", "-")), value)


def _draw_power(generator: random.Random) -> Value:
    exponent = generator.choice((generator.randint(2, 12), generator.randint(2, 100), -generator.randint(1, 40)))
    if generator.random() < 0.5:
        return values.power(_amount(generator, 3, 0.2), exponent)
    decimals = "".join(generator.choices(DIGITS, k=generator.randint(0, 4)))
    return values.scientific(f"{generator.randint(1, 9)}{decimals and '.'}{decimals}", exponent)


def _draw_percentage(generator: random.Random) -> Value:
    return values.signed(generator.choice(("", "", "", "-", "+")), values.percentage(_amount(generator, 4, 0.5)))


def _draw_fraction(generator: random.Random) -> Value:
    if generator.random() < 0.07:
        return values.fraction(_whole(generator, 3), generator.choice((1, generator.randint(101, 999))))
    denominator = generator.choice((*range(2, 21), *range(2, 11), *range(21, 100), 100, 1000))
    numerator = generator.randint(1, 999 if denominator == 1000 else 99)
    whole = 0
    if generator.random() < 0.4:
        numerator, whole = generator.randint(1, denominator - 1) % 100 or 1, generator.randint(1, 99)
    sign = generator.choice(("", "", "", "", "", "", "-"))
    return values.signed(sign, values.fraction(numerator, denominator, whole))


def _draw_money(generator: random.Random) -> Value:
    symbol = generator.choice(("$", "$", "$", "€", "£", "₹", values.YEN))
    if symbol != values.YEN and generator.random() < 0.15:
        return values.scaled_money(symbol, _amount(generator, 3, 0.5), generator.choice(SCALES[1:5]))
    if symbol in "$£" and generator.random() < 0.05:
        return values.colloquial_money(symbol, _whole(generator, 5))
    cents = generator.randint(1, 99) if generator.random() < 0.5 and symbol != values.YEN else 0
    whole = _whole(generator, generator.choice((6, 13))) if generator.random() < 0.9 else 0
    sign = "-" if symbol != values.YEN and generator.random() < 0.1 else ""
    return values.signed(sign, values.money(symbol, whole, cents))


def _hour_and_half(generator: random.Random, halves: Sequence[str] = ("", "a.m.", "p.m.")) -> tuple[int, str]:
    """Draws the half of the day, and an hour that fits it: without a half, of 24."""
    half = generator.choice(halves)
    return (generator.randint(1, 12) if half else generator.randint(0, 23)), half


def _draw_time(generator: random.Random) -> Value:
    hour, half = _hour_and_half(generator)
    return times.time_of_day(hour, generator.choice((0, generator.randint(0, 59))), half)


def _draw_time_in_zone(generator: random.Random) -> Value:
    hour, half = _hour_and_half(generator)
    return times.time_in_zone(hour, generator.choice((0, generator.randint(0, 59))), half, generator.choice(ZONES))


def _draw_date_and_time(generator: random.Random) -> Value:
    day = date.fromordinal(generator.randint(date(1900, 1, 1).toordinal(), date(2050, 12, 31).toordinal()))
    hour, half = _hour_and_half(generator, ("", "", "a.m.", "p.m."))
    return times.date_and_time(
        day, hour, generator.choice((0, generator.randint(0, 59), generator.randint(0, 59))), half
    )


def _draw_product(generator: random.Random) -> Value:
    amounts = [_amount(generator, 4, 0.3).replace(",", "") for _ in range(generator.choice((2, 2, 3)))]
    return values.product(amounts, generator.choice(("", "", *SIZES)))


def _draw_list(generator: random.Random) -> Value:
    most = generator.choice((9, 30, 100, 999))
    return values.numbers_in_order([generator.randint(0, most) for _ in range(generator.randint(3, 6))])


def _draw_duration(generator: random.Random) -> Value:
    limits = generator.choices(DURATIONS, DURATION_WEIGHTS)[0]
    return times.duration(*((generator.randint(1, limit), unit) for unit, limit in limits.items()))


def _draw_day(generator: random.Random) -> Value:
    weekday = generator.choice(day_name) if generator.random() < 0.3 else ""
    return times.day_of_month(generator.randint(1, 12), generator.randint(1, 28), weekday)


def _draw_date(generator: random.Random) -> Value:
    if generator.random() < 0.05:
        return _draw_impossible_date(generator)
    if generator.random() < 0.01:
        number = generator.choice(range(1900, 2100))
        if isleap(number):
            return times.calendar_date(date(number, 2, 29))
        return times.impossible_date((2, 29, number), generator.choice("/-"))
    # Half of the days are of our time.
    first, last = (FIRST, LAST) if generator.random() < 0.5 else (date(1900, 1, 1), date(2050, 12, 31))
    day = date.fromordinal(generator.randint(first.toordinal(), last.toordinal()))
    if generator.random() < ROUND:
        day = date(generator.choice(CENTURIES), day.month, min(day.day, 28))
    return times.calendar_date(day, weekday=generator.random() < 0.15)


def _draw_impossible_date(generator: random.Random) -> Value:
    month = generator.choice((2, 4, 6, 9, 11))
    months = [generator.randint(13, 31), month, month]
    days = generator.randint(13, 31), 30 + (month != 2), 31
    month_and_day = generator.choice(
        [*zip(months, days, strict=True), (generator.randint(1, 31), generator.randint(32, 99))]
    )
    if month_and_day[1] > 31:
        month_and_day = generator.choice((month_and_day, month_and_day[::-1]))
    number = generator.choice(values.YEARS) if generator.random() < 0.7 else generator.randint(32, 99)
    numbers = (*month_and_day, number)
    if number >= 1000 and generator.random() < 0.3:
        numbers = (number, *month_and_day)
    return times.impossible_date(numbers, generator.choice("/-"))


def _draw_month(generator: random.Random) -> Value:
    # Half of the years are also written with two digits.
    years = generator.choice((times.SHORT_YEARS, range(1600, 2200))) if generator.random() >= ROUND else CENTURIES
    return times.month_of_year(generator.randint(1, 12), generator.choice(years))


def _draw_year(generator: random.Random) -> Value:
    if generator.random() < 0.5:
        return times.year_of_era(generator.randint(1, MAX_YEAR), generator.choice(ERAS))
    number = generator.choice(values.YEARS)
    return generator.choice((times.bare_year(number), times.in_year(number, generator.choice(BEFORE_YEARS))))


def _draw_telephone(generator: random.Random) -> Value:
    if generator.random() < 0.15:
        country, lengths = generator.choice(COUNTRIES[2:]), tuple(generator.choices(range(1, 5), k=4))
    else:
        country = ""
        lengths = generator.choice(((3, 4), (3, 3, 4), (3, 3, 4), (1, 3, 3, 4), (3, 2, 4), (5, 4), (4, 4, 4, 4)))
        if lengths == (3, 3, 4):
            country = generator.choice(("", "", "", *COUNTRIES))
    groups = [_digits(generator, length) for length in lengths]
    if lengths == (1, 3, 3, 4) and generator.random() < 0.5:
        groups[1] = generator.choice(("800", "800", "888", "877", "866"))
    # `9 188 555 111` is a number.
    return values.telephone(["1", *groups[1:]] if lengths == (1, 3, 3, 4) else groups, country)


def _draw_digits(generator: random.Random) -> Value:
    if generator.random() < 0.3:
        return values.single_digits(generator.choice(NONZERO) + _digits(generator, generator.randint(MAX_DIGITS, 39)))
    digits = _digits(generator, generator.randint(2, 12))
    return values.single_digits(f"0{digits[1:]}" if generator.random() < 0.6 else digits)


def _draw_dotted(generator: random.Random) -> Value:
    if generator.random() < 0.4:
        return values.dotted([generator.randint(0, generator.choice((1, 255, 255))) for _ in range(4)])
    parts = [generator.randint(0, generator.choice((9, 30, 100))) for _ in range(3)]
    return values.dotted(parts) if generator.random() < 0.6 else values.version(parts[: generator.randint(2, 3)])


def _draw_measure(generator: random.Random) -> Value:
    kind, unit = generator.random(), generator.choice(list(values.UNITS))
    if kind < 0.2:
        numerator, denominator = generator.choice(((1, 2), (1, 2), (1, 4), (3, 4), (1, 3), (2, 3), (1, 8), (5, 8)))
        unit = generator.choice(values.HALVED_UNITS)
        return values.halved_measure(generator.randint(0, 20), numerator, denominator, unit)
    if kind < 0.3:
        return values.scaled_measure(_amount(generator, 3, 0.5), generator.choice(SCALES[2:5]), unit)
    return values.signed(generator.choice(("", "", "", "-")), values.measure(_amount(generator, 7), unit))


def _draw_interval_of_times(generator: random.Random) -> Value:
    halves = generator.choice(
        (("", ""), ("", ""), ("a.m.", "p.m."), ("a.m.", "p.m."), ("a.m.", "a.m."), ("p.m.", "p.m."))
    )
    if not halves[0]:
        clock_times = [(generator.randint(0, 23), generator.choice((0, 0, 15, 30, 45, 5))) for _ in halves]
        return times.interval_of_clock_times(*clock_times)
    ends = [(generator.randint(1, 12), generator.choice((0, 0, 15, 30, 45)), half) for half in halves]
    return times.interval_of_times(*ends)


def _draw_interval(generator: random.Random) -> Value:
    kind = generator.random()
    if kind < 0.1:
        last = generator.choice((generator.randint(1, 9), generator.randint(60, 999), 10 ** generator.randint(2, 4)))
        return values.ratio(generator.randint(1, 100) if last < 10 else generator.randint(1, 9), last)
    if kind < 0.2:
        return times.interval_of_days(generator.randint(1, 12), *sorted(generator.sample(range(1, 29), 2)))
    if kind < 0.3:
        first, last = sorted(generator.sample(values.YEARS, 2))
        rounded = first - first % 100 if generator.random() < 0.2 else first
        # Half of the ranges end in the same century: `1575-87`.
        return values.interval(rounded, rounded - rounded % 100 + last % 100 if generator.random() < 0.5 else last)
    if kind < 0.48:
        return _draw_interval_of_times(generator)
    unit = generator.choice(("", "", "", "", "$", "%", *generator.sample(list(values.UNITS), 2)))
    first, last = generator.randint(0, generator.choice((20, 100, 999))), generator.randint(1, 200)
    if kind < 0.55:
        tenths = sorted(generator.sample(range(1, 1000), 2))
        return values.interval(*(each // 10 if each % 10 == 0 else each / 10 for each in tenths), unit)
    if kind < 0.65:
        # Round numbers of a size. `555-1234` is a telephone number.
        size = 10 ** generator.randint(2, 6)
        first, last = (each * size for each in sorted(generator.sample(range(1, 10), 2)))
    elif not unit and kind >= 0.9:
        # A score, or a range.
        first = min(first, 200)
    else:
        last = min(first + generator.choice((generator.randint(1, 20), generator.randint(1, 9) * 10)), 999)
    return values.interval(first, last, unit)


@dataclass(frozen=True, slots=True)
class ValueClass:
    """A class of values.

    Attributes:
        draw: draws a value.
        weight: the class's share of the drawn training pairs, relative to the other classes.
        few: the class has so few values that all of them are trained.
    """

    draw: Callable[[random.Random], Value]
    weight: float
    few: bool = False


CLASSES: Final[Mapping[str, ValueClass]] = {
    "cardinal": ValueClass(lambda g: values.whole_number(_whole(g)), 14),
    "signed": ValueClass(_draw_signed, 3),
    "ordinal": ValueClass(lambda g: values.ordinal_number(_whole(g) or 1, g.choice(("", "", "", "the "))), 4),
    "decimal": ValueClass(_draw_decimal, 4),
    "scaled": ValueClass(lambda g: values.scaled(_amount(g, 3, 0.6), g.choice(SCALES[1:])), 2),
    "percentage": ValueClass(_draw_percentage, 2),
    "fraction": ValueClass(_draw_fraction, 5),
    "power": ValueClass(_draw_power, 2.5),
    "product": ValueClass(_draw_product, 2),
    "list": ValueClass(_draw_list, 2),
    "money": ValueClass(_draw_money, 8),
    "time": ValueClass(_draw_time, 1, few=True),
    "zone": ValueClass(_draw_time_in_zone, 1.5),
    "moment": ValueClass(_draw_date_and_time, 2),
    "duration": ValueClass(_draw_duration, 2),
    "date": ValueClass(_draw_date, 12),
    "day": ValueClass(_draw_day, 0.5, few=True),
    "month": ValueClass(_draw_month, 4),
    "year": ValueClass(_draw_year, 0.5, few=True),
    "decade": ValueClass(lambda g: times.decade(g.choice(DECADES), g.choice(("", "the "))), 0.2, few=True),
    "digits": ValueClass(_draw_digits, 6),
    "telephone": ValueClass(_draw_telephone, 3),
    "dotted": ValueClass(_draw_dotted, 3),
    "measure": ValueClass(_draw_measure, 8),
    "height": ValueClass(lambda g: values.height(g.randint(1, 20), g.randint(0, 11)), 0.2, few=True),
    "range": ValueClass(_draw_interval, 4),
    "roman": ValueClass(lambda g: values.roman_numeral(g.randint(1, MAX_ROMAN)), 1, few=True),
    "numbered": ValueClass(lambda g: values.numbered(_whole(g, 5)), 1.5),
}

DATA_SETS: dict[str, Builder] = {"numbers": build}
