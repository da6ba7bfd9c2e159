"""Numbers, dates, times, amounts and their like, in figures and in words: `$5.50` and `five dollars and fifty cents`.

American English. The direction needs no symbol: a text in figures is to be spoken, a text in words is to be written.
The classes are those of written text that is read aloud (Sproat and Jaitly 2016). Each value has one spoken and one
written form as output, and several forms as input.
"""

import random
import re
from calendar import month_name
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import product
from pathlib import Path
from typing import Final
from zlib import crc32

from attendant.recipes.dates.data import FIRST, LAST, ordinal_ending
from attendant.training.data.fetch import Announce, Builder, write_pairs
from attendant.training.data.pairs import Pair

ONES: Final = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
TENS: Final = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
SCALES: Final = ("", "thousand", "million", "billion", "trillion", "quadrillion")
ORDINALS: Final = {
    "one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth",
    "twelve": "twelfth",
}  # fmt: skip
"""The ordinals that are not made by an ending alone."""

MAX_DIGITS: Final = 3 * len(SCALES)
MAX_DECIMALS: Final = 6
EXHAUSTIVE: Final = 10_000
"""All cardinals and ordinals below it are in the training split, in both directions."""

NONZERO: Final = "111123456789"
"""Digits are drawn from it. As tens, 1 makes ten words and every other digit makes one, so 1 is drawn more often."""

CURRENCIES: Final = {
    "$": ("dollar", "dollars", "cent", "cents"),
    "€": ("euro", "euros", "cent", "cents"),
    "£": ("pound", "pounds", "penny", "pence"),
}
YEN: Final = "¥"

UNITS: Final = {
    "mm": "millimeter", "cm": "centimeter", "m": "meter", "km": "kilometer", "mi": "mile", "ft": "foot", "in": "inch",
    "yd": "yard", "mg": "milligram", "g": "gram", "kg": "kilogram", "lb": "pound", "oz": "ounce",
    "ml": "milliliter", "L": "liter", "gal": "gallon", "mph": "mile per hour", "km/h": "kilometer per hour",
    "m/s": "meter per second", "KB": "kilobyte", "MB": "megabyte", "GB": "gigabyte", "TB": "terabyte", "Hz": "hertz",
    "kHz": "kilohertz", "MHz": "megahertz", "GHz": "gigahertz", "W": "watt", "kW": "kilowatt", "kWh": "kilowatt-hour",
    "V": "volt", "ms": "millisecond", "s": "second", "min": "minute", "h": "hour", "°C": "degree Celsius",
    "°F": "degree Fahrenheit", "°": "degree",
}  # fmt: skip
PLURALS: Final = {
    "foot": "feet", "inch": "inches", "hertz": "hertz", "kilohertz": "kilohertz", "megahertz": "megahertz",
    "gigahertz": "gigahertz",
}  # fmt: skip

SPOKEN_UNITS: Final = ("s", "lb", "min", "h")
"""Units that are spoken, but not written."""

DENOMINATORS: Final = {2: ("half", "halves"), 4: ("quarter", "quarters")}
"""The denominators that are not spoken as an ordinal."""

ROMAN: Final = (
    (1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"), (40, "XL"), (10, "X"),
    (9, "IX"), (5, "V"), (4, "IV"), (1, "I"),
)  # fmt: skip
MAX_ROMAN: Final = 3999

AND: Final = re.compile(rf"hundred (?={'|'.join((*ONES[1:], *TENS[2:], *ORDINALS.values()))})")
"""The places where people say `and`."""

MISSPELLED: Final = {"forty": "fourty", "ninety": "ninty", "eighth": "eigth", "twelfth": "twelvth", "fifth": "fith"}

NUM_TRAINED: Final = 480_000
NUM_VALIDATED: Final = 50
NUM_TESTED: Final = 1_000
"""Pairs of each class in the validation split and in the test split."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a class, in both notations.

    Attributes:
        spoken: the output of `figures`, in words.
        written: the output of `words`, in figures.
        figures, words: the forms as input; empty if the value is not converted in that direction.
    """

    spoken: str
    written: str
    figures: tuple[str, ...] = ()
    words: tuple[str, ...] = ()

    def pairs(self, generator: random.Random) -> Iterator[Pair]:
        """Yields a pair for each direction, with one of the forms as its source."""
        if self.figures:
            yield Pair(_typed(generator.choice(self.figures), generator), self.spoken)
        if self.words:
            yield Pair(_heard(generator.choice(self.words), generator), self.written)


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
    for value, repetitions in _small_values():
        small.add(value.spoken)
        for _ in range(repetitions):
            trained += _consistent(value, generator, outputs)
    names, weights = list(CLASSES), [each.weight for each in CLASSES.values()]
    while len(trained) < NUM_TRAINED:
        (name,) = generator.choices(names, weights)
        value = CLASSES[name].draw(generator)
        if CLASSES[name].few or value.spoken in small or not _is_held_out(value):
            trained += _consistent(value, generator, outputs)
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
                pairs |= {pair.source.casefold(): pair for pair in _consistent(value, generator, outputs)}
        tested = list(pairs.values())[NUM_VALIDATED : NUM_VALIDATED + NUM_TESTED]
        validation += list(pairs.values())[:NUM_VALIDATED]
        test += tested
        write_pairs(directory / f"test-{name}.tsv", tested)
    write_pairs(directory / "validation.tsv", validation)
    write_pairs(directory / "test.tsv", test)


def _is_held_out(value: Value) -> bool:
    return crc32(value.spoken.encode()) % 8 == 0


def _consistent(value: Value, generator: random.Random, outputs: dict[str, str]) -> list[Pair]:
    """Returns pairs of a value, without those whose source has another output already (`80s` is a decade)."""
    return [
        pair
        for pair in value.pairs(generator)
        if outputs.setdefault(pair.source.casefold(), pair.target) == pair.target
    ]


def cardinal(number: int) -> str:
    """Returns a whole number below 10**18 in words: `two hundred five thousand thirty-one`."""
    if number < 1000:
        return _below_thousand(number)
    words = []
    for index, scale in reversed(list(enumerate(SCALES))):
        if group := number // 1000**index % 1000:
            words += [_below_thousand(group), scale]
    return " ".join(words).rstrip()


def ordinal(number: int) -> str:
    """Returns an ordinal in words: `two hundred thirty-first`."""
    before, last = re.fullmatch(r"(.*?)(\w+)", cardinal(number)).groups()  # type: ignore[union-attr]
    if last in ORDINALS:
        return before + ORDINALS[last]
    return before + (f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th")


def year(number: int) -> str:
    """Returns a year from 1100 to 9999 in words: `nineteen oh five`, `two thousand five`, `twenty twelve`."""
    century, rest = divmod(number, 100)
    if century % 10 == 0 and rest < 10:
        return cardinal(number)
    if rest == 0:
        return f"{cardinal(century)} hundred"
    return f"{cardinal(century)} {'oh ' if rest < 10 else ''}{cardinal(rest)}"


def roman(number: int) -> str:
    """Returns a number from 1 to 3999 as a Roman numeral."""
    numeral = ""
    for amount, letters in ROMAN:
        numeral += letters * (number // amount)
        number %= amount
    return numeral


def digit_by_digit(digits: str) -> str:
    """Returns a string of digits as it is read over the telephone: `007` is `zero zero seven`."""
    return " ".join(ONES[int(digit)] for digit in digits)


def _below_thousand(number: int) -> str:
    hundreds, rest = divmod(number, 100)
    words = [ONES[hundreds], "hundred"] if hundreds else []
    if rest >= 20:
        words.append(TENS[rest // 10] + (f"-{ONES[rest % 10]}" if rest % 10 else ""))
    elif rest or not hundreds:
        words.append(ONES[rest])
    return " ".join(words)


def _whole(generator: random.Random, max_digits: int = MAX_DIGITS) -> int:
    """Draws a whole number: each number of digits is as likely as any other, and so is each share of zeros."""
    share = generator.choice((0.1, 0.4, 0.7, 0.9))
    digits = "".join(
        "0" if generator.random() < share else generator.choice(NONZERO)
        for _ in range(generator.randint(0, max_digits - 1))
    )
    return int(generator.choice(NONZERO) + digits) if generator.random() < 0.99 else 0


def _both(spoken: str, written: str, figures: Sequence[str] = (), words: Sequence[str] = ()) -> Value:
    return Value(spoken, written, (written, *figures), (spoken, *words))


def _spoken_only(spoken: str, figures: Sequence[str]) -> Value:
    return Value(spoken, "", tuple(figures))


def _number(number: int, sign: str = "") -> Value:
    spoken = {"": "", "-": "minus ", "+": "plus "}[sign] + cardinal(number)
    figures, readings = [], []
    if sign == "-":
        figures.append(f"−{number:,}")
        readings.append(f"negative {cardinal(number)}")
    # `nineteen hundred` is a year.
    if not sign and number % 100 == 0 and number % 1000 and 1000 < number < 10_000 and number not in range(1300, 2000):
        readings.append(f"{cardinal(number // 100)} hundred")
    return _both(spoken, f"{sign}{number:,}", figures, readings)


def _ordinal(number: int) -> Value:
    return _both(ordinal(number), f"{number:,}{ordinal_ending(number)}")


def _decimal(number: int, decimals: str, sign: str = "") -> Value:
    sign_word = "minus " if sign else ""
    spoken = f"{sign_word}{cardinal(number)} point {digit_by_digit(decimals)}"
    readings = [f"{sign_word}{cardinal(number)} point {digit_by_digit(decimals).replace('zero', 'oh')}"]
    figures = []
    if sign:
        readings.append(spoken.replace("minus", "negative"))
    if not number:
        figures.append(f"{sign}.{decimals}")
        readings.append(spoken.replace("zero point", "point", 1))
    return _both(spoken, f"{sign}{number:,}.{decimals}", figures, readings)


def _scaled(amount: str, scale: str) -> Value:
    """Returns an amount such as `2.5 million`. The words of a whole amount, `five million`, are written in digits."""
    spoken, written = f"{_amount_words(amount)} {scale}", f"{amount} {scale}"
    return _both(spoken, written) if "." in amount else _spoken_only(spoken, [written])


def _percentage(amount: str) -> Value:
    spoken = f"{_amount_words(amount)} percent"
    return _both(spoken, f"{amount}%", [f"{amount} %", f"{amount} percent"], [spoken.replace("percent", "per cent")])


def _fraction(numerator: int, denominator: int, whole: int = 0) -> Value:
    """Returns a fraction. Its numerator is below 100, so that no `hundred and` can be its beginning."""
    singular, plural = DENOMINATORS.get(denominator) or (ordinal(denominator), f"{ordinal(denominator)}s")
    part = f"{cardinal(numerator)} {singular if numerator == 1 else plural}"
    readings = [part.replace("quarter", "fourth")] if denominator == 4 else []
    written = f"{numerator}/{denominator}"
    if whole:
        spoken = f"{cardinal(whole)} and {'a half' if (numerator, denominator) == (1, 2) else part}"
        return _both(
            spoken, f"{whole} {written}", words=[f"{cardinal(whole)} and {part}" for part in (part, *readings)]
        )
    # `one hundredth` is an ordinal.
    if numerator == 1 and denominator in (100, 1000):
        return _spoken_only(part, [written])
    return _both(part, written, words=["a half", "half"] if (numerator, denominator) == (1, 2) else readings)


def _money(symbol: str, whole: int, cents: int = 0) -> Value:
    if symbol == YEN:
        return _both(f"{cardinal(whole)} yen", f"{YEN}{whole:,}", [f"{YEN} {whole:,}", f"{whole:,} yen"])
    singular, plural, cent, many_cents = CURRENCIES[symbol]
    large = f"{cardinal(whole)} {singular if whole == 1 else plural}"
    small = f"{cardinal(cents)} {cent if cents == 1 else many_cents}"
    amount = f"{whole:,}.{cents:02}" if cents else f"{whole:,}"
    figures = [f"{symbol} {amount}"]
    if not cents:
        figures += [f"{symbol}{amount}.00", f"{amount} {singular if whole == 1 else plural}"]
    if symbol == "€":
        figures += [f"{amount}€", f"{amount} €", f"EUR {amount}"]
    if symbol == "$":
        figures += [f"USD {amount}"]
        if cents and not whole:
            figures += [f"{cents}¢", f"{cents} {cent if cents == 1 else many_cents}"]
    written = f"{symbol}{amount}"
    if not cents:
        return _both(large, written, figures)
    if whole:
        return _both(f"{large} and {small}", written, figures, [f"{large} {small}"])
    # `five cents` are of a dollar.
    return _spoken_only(small, [written, *figures]) if symbol == "€" else _both(small, written, figures)


def _scaled_money(symbol: str, amount: str, scale: str) -> Value:
    spoken = f"{_amount_words(amount)} {scale} {CURRENCIES[symbol][1]}"
    written, typed = f"{symbol}{amount} {scale}", f"{amount} {scale} {CURRENCIES[symbol][1]}"
    return _both(spoken, written, [typed]) if "." in amount else _spoken_only(spoken, [written, typed])


def _time(hour: int, minute: int, half: str = "") -> Value:
    """Returns a time of day; `half` is `a.m.`, `p.m.` or empty. Words of hours above 12 are written as years."""
    end = f" {half}" if half else ""
    if minute:
        spoken = f"{cardinal(hour)} {'oh ' if minute < 10 else ''}{cardinal(minute)}{end}"
    else:
        spoken = f"{cardinal(hour)}{end}" if half else f"{cardinal(hour)} o'clock"
    short = half.replace(".", "")
    figures = [f"0{hour}:{minute:02}{end}"] if hour < 10 else []
    if half:
        figures += [f"{hour}:{minute:02} {short}", f"{hour}:{minute:02}{short}"]
        if not minute:
            figures += [f"{hour} {short}", f"{hour}{short}", f"{hour} {half}"]
    written = f"{hour}:{minute:02}{end}"
    if not 1 <= hour <= 12:
        return _spoken_only(spoken, [written, *figures])
    readings = []
    if minute in (15, 30):
        past = f"{'quarter' if minute == 15 else 'half'} past {cardinal(hour)}{end}"
        readings += [past, f"a {past}"] if minute == 15 else [past]
    if minute == 45 and hour not in (11, 12):
        to = f"quarter to {cardinal(hour + 1)}{end}"
        readings += [to, f"a {to}"]
    if half:
        stems = [reading.removesuffix(half) for reading in (spoken, *readings)]
        readings += [f"{stem}{heard}" for stem in stems for heard in (short, " ".join(short))]
    return _both(spoken, written, figures, readings)


def _date(day: date) -> Value:
    month, spoken_day, spoken_year = month_name[day.month], ordinal(day.day), year(day.year)
    nth = f"{day.day}{ordinal_ending(day.day)}"
    figures = [
        f"{month} {day.day}, {day.year}", f"{month} {day.day} {day.year}", f"{month} {nth}, {day.year}",
        f"{month[:3]} {day.day}, {day.year}", f"{month[:3]}. {day.day}, {day.year}", f"{day.day} {month} {day.year}",
        f"{day.day} {month[:3]} {day.year}", f"{nth} of {month} {day.year}", f"the {nth} of {month}, {day.year}",
        f"{day.month}/{day.day}/{day.year}", f"{day.month:02}/{day.day:02}/{day.year}",
        f"{day.year}/{day.month:02}/{day.day:02}",
    ]  # fmt: skip
    readings = [
        f"the {spoken_day} of {month}, {spoken_year}", f"the {spoken_day} of {month} {spoken_year}",
        f"{spoken_day} of {month} {spoken_year}", f"{month} {spoken_day} {spoken_year}",
        f"{month} {cardinal(day.day)}, {spoken_year}", f"{month} the {spoken_day}, {spoken_year}",
    ]  # fmt: skip
    if 2010 <= day.year < 2100:
        readings.append(f"{month} {spoken_day}, {cardinal(day.year)}")
    return _both(f"{month} {spoken_day}, {spoken_year}", day.isoformat(), figures, readings)


def _day(month: int, day: int) -> Value:
    name, nth = month_name[month], f"{day}{ordinal_ending(day)}"
    figures = [f"{name} {nth}", f"{name[:3]} {day}", f"{name[:3]}. {day}", f"{day} {name}", f"{nth} of {name}"]
    readings = [f"the {ordinal(day)} of {name}", f"{ordinal(day)} of {name}", f"{name} {cardinal(day)}"]
    return _both(f"{name} {ordinal(day)}", f"{name} {day}", figures, readings)


def _month(month: int, number: int) -> Value:
    name = month_name[month]
    figures = [f"{name[:3]} {number}", f"{name}, {number}"]
    return _both(f"{name} {year(number)}", f"{name} {number}", figures, [f"{name}, {year(number)}"])


def _year(number: int) -> Value:
    """Returns a year. Its bare figures are a number; its bare words are a year if they differ from the number's."""
    if year(number) == cardinal(number):
        return _in_year(number)
    return Value(year(number), str(number), (f"{number} AD", f"AD {number}"), (year(number),))


def _in_year(number: int) -> Value:
    return _both(f"in {year(number)}", f"in {number}")


def _decade(number: int) -> Value:
    """Returns a decade from the twenties on; below 100, without its century."""
    century, tens = divmod(number, 100)
    plural = f"{TENS[tens // 10].removesuffix('y')}ies"
    if not century:
        return _both(plural, f"{number}s", [f"'{number}s", f"’{number}s"])
    return _both(f"{cardinal(century)} {plural}", f"{number}s")


def _digits(digits: str) -> Value:
    """Digits that are spoken one by one. In figures, only a first zero tells them from a number."""
    spoken = digit_by_digit(digits)
    figures = (digits,) if digits.startswith("0") else ()
    return Value(spoken, digits, figures, (spoken, spoken.replace("zero", "oh")))


def _telephone(groups: Sequence[str], country: str = "") -> Value:
    spoken, written = ", ".join(map(digit_by_digit, groups)), "-".join(groups)
    figures = []
    if len(groups) == 3:
        figures = [" ".join(groups), ".".join(groups), f"({groups[0]}) {groups[1]}-{groups[2]}"]
    if country:
        figures = [f"+{country} {figure}" for figure in (*figures, written)]
        spoken, written = f"plus {digit_by_digit(country)}, {spoken}", f"+{country}-{written}"
    return _both(spoken, written, figures, [spoken.replace("zero", "oh")])


def _dotted(parts: Sequence[int]) -> Value:
    """Returns a version or an Internet address."""
    return _both(" dot ".join(map(cardinal, parts)), ".".join(map(str, parts)))


def _measure(amount: str, unit: str) -> Value:
    noun, *rest = UNITS[unit].split(" ")
    if amount not in ("1", "-1"):
        noun = PLURALS.get(noun, f"{noun}s")
    spoken = " ".join((_amount_words(amount), noun, *rest))
    forms = [f"{amount} {unit}", f"{amount}{unit}"]
    written, figure = reversed(forms) if unit.startswith("°") else forms
    # `five pounds` are money, and `five minutes` stay words.
    return _spoken_only(spoken, forms) if unit in SPOKEN_UNITS else _both(spoken, written, [figure])


def _roman(number: int) -> Value:
    return _spoken_only(cardinal(number), [roman(number)])


def _numbered(number: int) -> Value:
    return _both(f"number {cardinal(number)}", f"#{number}", [f"No. {number}"])


def _amount_words(amount: str) -> str:
    sign, digits = ("minus ", amount[1:]) if amount.startswith("-") else ("", amount)
    whole, _, decimals = digits.replace(",", "").partition(".")
    return f"{sign}{cardinal(int(whole))}{f' point {digit_by_digit(decimals)}' if decimals else ''}"


def _typed(figures: str, generator: random.Random) -> str:
    """Returns figures as people type them: often without commas in thousands."""
    return re.sub(r"(?<=\d),(?=\d{3})", "", figures) if generator.random() < 0.5 else figures


def _heard(words: str, generator: random.Random) -> str:
    """Returns words as people write them: without hyphens, with `and`, with `a` for `one`, misspelled."""
    if generator.random() < 0.3:
        words = words.replace("-", " ")
    if generator.random() < 0.3:
        words = AND.sub("hundred and ", words)
    if generator.random() < 0.3:
        words = re.sub(r"^one (?=(hundred|thousand)\b)", "a ", words)
    if generator.random() < 0.03:
        for right, wrong in MISSPELLED.items():
            words = words.replace(right, wrong)
    return words


def _small_values() -> Iterator[tuple[Value, int]]:
    """Yields the values that the training split has all, each with a number of repetitions."""
    for number in range(EXHAUSTIVE):
        yield _number(number), 12 if number < 100 else 4 if number < 1000 else 2
        yield _ordinal(number), 6 if number < 100 else 1
    for number in range(101):
        yield from ((_number(number, sign), 3) for sign in "+-")
        yield from ((_money(symbol, number), 3) for symbol in (*CURRENCIES, YEN))
        yield from ((_measure(str(number), unit), 1) for unit in UNITS)
        yield _percentage(str(number)), 4
        yield _numbered(number), 2
    for cents, symbol in product(range(1, 100), CURRENCIES):
        yield _money(symbol, 0, cents), 2
    for number in range(1, MAX_ROMAN + 1):
        yield _roman(number), 12 if number <= 100 else 3
    for denominator in range(2, 21):
        yield from ((_fraction(numerator, denominator), 4) for numerator in range(1, denominator))
    for number in range(10):
        yield _decimal(number, "5"), 2
        yield _digits(f"0{number}"), 4
        yield _digits(f"00{number}"), 2
    for hour, minute in product(range(24), range(60)):
        # A quarter of an hour has more forms than another time.
        repetitions = 12 if minute % 15 == 0 else 3
        yield _time(hour, minute), repetitions
        if 1 <= hour <= 12:
            yield from ((_time(hour, minute, half), 2 * repetitions) for half in ("a.m.", "p.m."))
    for month, day in product(range(1, 13), range(1, 32)):
        if day <= (29 if month == 2 else 30 if month in (4, 6, 9, 11) else 31):
            yield _day(month, day), 8
    for number in range(1300, 2100):
        yield _year(number), 2
        yield _in_year(number), 2
    for century, tens in product((0, *range(13, 21)), range(20, 100, 10)):
        yield _decade(100 * century + tens), 16 if century else 60


def _amount(generator: random.Random, max_digits: int = 4, decimals: float = 0.3) -> str:
    number = f"{_whole(generator, max_digits):,}"
    if generator.random() < decimals:
        number += "." + "".join(generator.choices("0123456789", k=generator.randint(1, 2)))
    return number


def _draw_decimal(generator: random.Random) -> Value:
    decimals = "".join(generator.choices("0123456789", k=generator.randint(1, MAX_DECIMALS)))
    return _decimal(_whole(generator, 12), decimals, "-" if generator.random() < 0.2 else "")


def _draw_fraction(generator: random.Random) -> Value:
    denominator = generator.choice((*range(2, 21), *range(2, 11), *range(21, 100), 100, 1000))
    numerator = generator.randint(1, 99)
    if generator.random() < 0.4:
        return _fraction(generator.randint(1, denominator - 1) % 100 or 1, denominator, generator.randint(1, 99))
    return _fraction(numerator, denominator)


def _draw_money(generator: random.Random) -> Value:
    symbol = generator.choice(("$", "$", "$", "€", "£", YEN))
    if symbol != YEN and generator.random() < 0.15:
        return _scaled_money(symbol, _amount(generator, 3, 0.5), generator.choice(SCALES[2:5]))
    cents = generator.randint(1, 99) if generator.random() < 0.5 and symbol != YEN else 0
    whole = _whole(generator, 9) if generator.random() < 0.9 else 0
    return _money(symbol, whole, cents)


def _draw_time(generator: random.Random) -> Value:
    half = generator.choice(("", "a.m.", "p.m."))
    hour = generator.randint(1, 12) if half else generator.randint(0, 23)
    return _time(hour, generator.choice((0, generator.randint(0, 59))), half)


def _draw_date(generator: random.Random) -> Value:
    # Half of the days are of our time.
    first, last = (FIRST, LAST) if generator.random() < 0.5 else (date(1900, 1, 1), date(2050, 12, 31))
    return _date(date.fromordinal(generator.randint(first.toordinal(), last.toordinal())))


def _draw_telephone(generator: random.Random) -> Value:
    lengths = generator.choice(((3, 4), (3, 3, 4), (3, 3, 4)))
    groups = ["".join(generator.choices("0123456789", k=length)) for length in lengths]
    country = generator.choice(("", "", "1", "44", "49")) if len(groups) == 3 else ""
    return _telephone(groups, country)


def _draw_digits(generator: random.Random) -> Value:
    digits = "".join(generator.choices("0123456789", k=generator.randint(2, 12)))
    return _digits(f"0{digits[1:]}" if generator.random() < 0.6 else digits)


def _draw_dotted(generator: random.Random) -> Value:
    if generator.random() < 0.5:
        return _dotted([generator.randint(0, 255) for _ in range(4)])
    return _dotted([generator.randint(0, generator.choice((9, 30, 100))) for _ in range(3)])


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
    "cardinal": ValueClass(lambda g: _number(_whole(g)), 12),
    "signed": ValueClass(lambda g: _number(_whole(g), g.choice("--+")), 3),
    "ordinal": ValueClass(lambda g: _ordinal(_whole(g) or 1), 3),
    "decimal": ValueClass(_draw_decimal, 3),
    "scaled": ValueClass(lambda g: _scaled(_amount(g, 3, 0.6), g.choice(SCALES[2:])), 1),
    "percentage": ValueClass(lambda g: _percentage(g.choice(("", "", "-")) + _amount(g, 3, 0.5)), 1.5),
    "fraction": ValueClass(_draw_fraction, 3),
    "money": ValueClass(_draw_money, 4),
    "time": ValueClass(_draw_time, 1.5, few=True),
    "date": ValueClass(_draw_date, 5),
    "day": ValueClass(lambda g: _day(g.randint(1, 12), g.randint(1, 28)), 0.5, few=True),
    "month": ValueClass(lambda g: _month(g.randint(1, 12), g.randint(1600, 2199)), 1),
    "year": ValueClass(lambda g: g.choice((_year, _in_year))(g.randint(1300, 2099)), 1, few=True),
    "decade": ValueClass(lambda g: _decade(g.choice((0, *range(13, 21))) * 100 + g.randint(2, 9) * 10), 0.3, few=True),
    "digits": ValueClass(_draw_digits, 2),
    "telephone": ValueClass(_draw_telephone, 2),
    "dotted": ValueClass(_draw_dotted, 1),
    "measure": ValueClass(lambda g: _measure(g.choice(("", "", "", "-")) + _amount(g), g.choice(list(UNITS))), 4),
    "roman": ValueClass(lambda g: _roman(g.randint(1, MAX_ROMAN)), 1.5, few=True),
    "numbered": ValueClass(lambda g: _numbered(_whole(g, 4)), 0.5),
}

DATA_SETS: dict[str, Builder] = {"numbers": build}
