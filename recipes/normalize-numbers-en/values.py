"""Values of each class in both notations: `$5.50` and `five dollars and fifty cents`.

Each value has one spoken and one written form as output, and several forms as input. Where a form could mean another
value as well, only one of the two has it.
"""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from attendant.recipes.dates.data import ordinal_ending
from attendant.training.data.pairs import Pair

# The folder's name is not an identifier.
in_words: Any = import_module("attendant.recipes.normalize-numbers-en.words")
cardinal, ordinal, year = in_words.cardinal, in_words.ordinal, in_words.year

CURRENCIES: Final = {
    "$": ("dollar", "dollars", "cent", "cents"),
    "€": ("euro", "euros", "cent", "cents"),
    "£": ("pound", "pounds", "penny", "pence"),
}
CODES: Final = {"$": "USD", "€": "EUR", "£": "GBP"}
YEN: Final = "¥"

UNITS: Final = {
    "mm": "millimeter", "cm": "centimeter", "m": "meter", "km": "kilometer", "mi": "mile", "ft": "foot", "in": "inch",
    "yd": "yard", "mg": "milligram", "g": "gram", "kg": "kilogram", "lb": "pound", "oz": "ounce", "ton": "ton",
    "ml": "milliliter", "L": "liter", "gal": "gallon", "tsp": "teaspoon", "tbsp": "tablespoon", "cup": "cup",
    "m²": "square meter", "km²": "square kilometer", "sq ft": "square foot", "mph": "mile per hour",
    "km/h": "kilometer per hour", "m/s": "meter per second", "KB": "kilobyte", "MB": "megabyte", "GB": "gigabyte",
    "TB": "terabyte", "Mbps": "megabit per second", "Hz": "hertz", "kHz": "kilohertz", "MHz": "megahertz",
    "GHz": "gigahertz", "W": "watt", "kW": "kilowatt", "kWh": "kilowatt-hour", "V": "volt", "hp": "horsepower",
    "dB": "decibel", "ms": "millisecond", "s": "second", "min": "minute", "h": "hour", "day": "day", "week": "week",
    "month": "month", "year": "year", "°C": "degree Celsius", "°F": "degree Fahrenheit", "°": "degree",
}  # fmt: skip
PLURALS: Final = {
    "foot": "feet", "inch": "inches", "hertz": "hertz", "kilohertz": "kilohertz", "megahertz": "megahertz",
    "gigahertz": "gigahertz", "horsepower": "horsepower", "square meter": "square meters",
    "square kilometer": "square kilometers", "square foot": "square feet",
}  # fmt: skip
ALIASES: Final = {
    "lb": ("lbs", "lbs."), "s": ("sec", "secs"), "min": ("mins",), "h": ("hr", "hrs"), "ft": ("ft.",), "in": ("in.",),
    "km/h": ("kph", "kmh"), "m²": ("m2",), "km²": ("km2",), "°C": ("C",), "°F": ("F",), "°": ("deg",), "mi": ("mi.",),
    "oz": ("oz.",),
}  # fmt: skip
"""Other ways to type a unit."""

NOUNS: Final = ("s", "min", "h", "day", "week", "month", "year", "cup", "ton")
"""The units that are written as a noun."""

HALVED_UNITS: Final = ("mi", "km", "in", "ft", "yd", "lb", "oz", "gal", "L", "tsp", "tbsp", "cup", "h", "year", "ton")
"""The units of which people have half a one, or two and a half."""

GLYPHS: Final = {
    (1, 2): "½", (1, 3): "⅓", (2, 3): "⅔", (1, 4): "¼", (3, 4): "¾", (1, 5): "⅕", (2, 5): "⅖", (3, 5): "⅗", (4, 5): "⅘",
    (1, 6): "⅙", (5, 6): "⅚", (1, 7): "⅐", (1, 8): "⅛", (3, 8): "⅜", (5, 8): "⅝", (7, 8): "⅞", (1, 9): "⅑",
    (1, 10): "⅒",
}  # fmt: skip

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

MINUTES: Final = range(5, 30, 5)
"""The minutes before or after the hour that are a time without the word: `ten to four`."""

YEARS: Final = range(1300, 2100)
"""The numbers that are years on both sides of a range."""

MISSPELLED: Final = {"forty": "fourty", "ninety": "ninty", "eighth": "eigth", "twelfth": "twelvth", "fifth": "fith"}


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
        """Yields a pair for each direction. Its source is one of the forms, drawn at random."""
        if self.figures:
            yield Pair(_typed(generator.choice(self.figures), generator), self.spoken)
        if self.words:
            yield Pair(_heard(generator.choice(self.words), generator), self.written)


def both(spoken: str, written: str, figures: Sequence[str] = (), words: Sequence[str] = ()) -> Value:
    """Returns a value whose outputs are inputs of the other direction, with further forms."""
    return Value(spoken, written, (written, *figures), (spoken, *words))


def spoken_only(spoken: str, figures: Sequence[str]) -> Value:
    """Returns a value that is converted to words alone."""
    return Value(spoken, "", tuple(figures))


def whole_number(number: int, sign: str = "") -> Value:
    """Returns a whole number; `sign` is `-`, `+` or empty."""
    spoken = {"": "", "-": "minus ", "+": "plus "}[sign] + cardinal(number)
    figures, readings = [], []
    if sign == "-":
        figures.append(f"−{number:,}")
        readings.append(f"negative {cardinal(number)}")
    if not sign and spoken.removeprefix("one ") in ("hundred", *in_words.SCALES[1:]):
        readings.append(spoken.removeprefix("one "))
    # `nineteen hundred` is a year.
    if not sign and number % 100 == 0 and number % 1000 and 1000 < number < 10_000 and number not in range(1300, 2000):
        readings.append(f"{cardinal(number // 100)} hundred")
    return both(spoken, f"{sign}{number:,}", figures, readings)


def ordinal_number(number: int) -> Value:
    """Returns an ordinal: `21st`."""
    spoken = ordinal(number)
    short = spoken.removeprefix("one ")
    return both(spoken, f"{number:,}{ordinal_ending(number)}", words=[short] if " " not in short else [])


def decimal(number: int, decimals: str, sign: str = "") -> Value:
    """Returns a number with decimals, which are spoken digit by digit; `sign` is `-` or empty."""
    sign_word = "minus " if sign else ""
    spoken = f"{sign_word}{cardinal(number)} point {in_words.digit_by_digit(decimals)}"
    readings = [f"{sign_word}{cardinal(number)} point {in_words.digit_by_digit(decimals).replace('zero', 'oh')}"]
    figures = []
    if sign:
        readings.append(spoken.replace("minus", "negative"))
    if not number:
        figures.append(f"{sign}.{decimals}")
        readings.append(spoken.replace("zero point", "point", 1))
    return both(spoken, f"{sign}{number:,}.{decimals}", figures, readings)


def scaled(amount: str, scale: str) -> Value:
    """Returns an amount such as `2.5 million`. The words of a whole amount, `five million`, are written in digits."""
    spoken, written = f"{in_words.amount(amount)} {scale}", f"{amount} {scale}"
    short = {"thousand": [f"{amount}k"], "billion": [f"{amount}bn", f"{amount} bn"]}.get(scale, [])
    return (
        both(spoken, written, short, _halves(amount, scale))
        if "." in amount
        else spoken_only(spoken, [written, *short])
    )


def percentage(amount: str) -> Value:
    """Returns a percentage."""
    spoken = f"{in_words.amount(amount)} percent"
    readings = [spoken.replace("percent", "per cent"), *_halves(amount, "percent")]
    if amount.startswith("-"):
        readings.append(spoken.replace("minus", "negative"))
    return both(spoken, f"{amount}%", [f"{amount} %", f"{amount} percent"], readings)


def fraction(numerator: int, denominator: int, whole: int = 0) -> Value:
    """Returns a fraction. No `hundred and` can be its beginning, because its numerator is below 100, or its
    denominator is 1,000.
    """
    part = in_words.fraction(numerator, denominator)
    readings = [part.replace("quarter", "fourth")] if denominator == 4 else []
    if numerator == 1 and denominator <= 20:
        readings += [
            f"{in_words.article(noun)} {noun}" for noun in (word.removeprefix("one ") for word in (part, *readings))
        ]
    written, glyph = f"{numerator}/{denominator}", GLYPHS.get((numerator, denominator))
    if whole:
        spoken = f"{cardinal(whole)} and {'a half' if (numerator, denominator) == (1, 2) else part}"
        figures = [f"{whole}{glyph}", f"{whole} {glyph}"] if glyph else []
        return both(
            spoken, f"{whole} {written}", figures, [f"{cardinal(whole)} and {each}" for each in (part, *readings)]
        )
    figures = [glyph] if glyph else []
    # `one hundredth` is an ordinal.
    if numerator == 1 and denominator in (100, 1000):
        return spoken_only(part, [written])
    # `third` is an ordinal.
    if numerator == 1 and denominator in in_words.DENOMINATORS:
        readings.append(part.removeprefix("one "))
    return both(part, written, figures, readings)


def dozens(count: int) -> Value:
    """Returns dozens."""
    return Value(f"{cardinal(count)} dozen", f"{12 * count:,}", (f"{count} dozen",), (f"{cardinal(count)} dozen",))


def phrases() -> list[Value]:
    """Returns the values that have words of their own."""
    return [
        Value("twelve noon", "12:00 p.m.", ("12 noon", "12:00 noon"), ("noon", "twelve noon", "midday")),
        Value("twelve midnight", "12:00 a.m.", ("12 midnight", "12:00 midnight"), ("midnight", "twelve midnight")),
        Value("half a dozen", "6", ("1/2 dozen", "½ dozen"), ("half a dozen", "half dozen", "a half dozen")),
        both("twenty-four seven", "24/7"),
    ]


def money(symbol: str, whole: int, cents: int = 0, sign: str = "") -> Value:
    """Returns an amount of money; `sign` is `-` or empty."""
    if sign:
        value = money(symbol, whole, cents)
        figures = [f"-{figure}" for figure in value.figures if not figure[0].isalpha()]
        words = [f"{word} {each}" for each in value.words for word in ("minus", "negative")]
        return Value(f"minus {value.spoken}", f"-{value.written}", tuple(figures), tuple(words))
    if symbol == YEN:
        return both(f"{cardinal(whole)} yen", f"{YEN}{whole:,}", [f"{YEN} {whole:,}", f"{whole:,} yen"])
    singular, plural, cent, many_cents = CURRENCIES[symbol]
    noun, small_noun = singular if whole == 1 else plural, cent if cents == 1 else many_cents
    large, small = f"{cardinal(whole)} {noun}", f"{cardinal(cents)} {small_noun}"
    amount = f"{whole:,}.{cents:02}" if cents else f"{whole:,}"
    written = f"{symbol}{amount}"
    figures = [f"{symbol} {amount}", f"{amount}{symbol}", f"{amount} {symbol}"]
    figures += [f"{CODES[symbol]} {amount}", f"{amount} {CODES[symbol]}", *([f"US${amount}"] if symbol == "$" else [])]
    if not cents:
        return both(large, written, [*figures, f"{written}.00", f"{amount} {noun}"])
    if whole:
        figures += [f"{amount} {plural}", f"{whole:,} {noun} {cents} {small_noun}"]
        figures += [f"{whole:,} {noun} and {cents} {small_noun}"]
        if cents % 10 == 0:
            figures.append(written.removesuffix("0"))
        return both(f"{large} and {small}", written, figures, [f"{large} {small}"])
    figures.append(f"{symbol}.{cents:02}")
    # `five cents` are of a dollar.
    if symbol == "€":
        return spoken_only(small, [written, *figures])
    short = f"{cents}¢" if symbol == "$" else f"{cents}p"
    return both(small, written, [*figures, short, f"{cents} {small_noun}"])


def bucks(whole: int) -> Value:
    """Returns an amount of dollars, as people call them."""
    spoken, figures = (f"{count} {'buck' if whole == 1 else 'bucks'}" for count in (cardinal(whole), f"{whole:,}"))
    return Value(spoken, f"${whole:,}", (figures,), (spoken,))


def scaled_money(symbol: str, amount: str, scale: str) -> Value:
    """Returns an amount such as `$2.5 million`."""
    plural = CURRENCIES[symbol][1]
    spoken, written = f"{in_words.amount(amount)} {scale} {plural}", f"{symbol}{amount} {scale}"
    shorts = {"thousand": ["k"], "million": ["M"], "billion": ["B", "bn"], "trillion": ["T"]}[scale]
    figures = [f"{amount} {scale} {plural}", *(f"{symbol}{amount}{short}" for short in shorts)]
    if "." not in amount:
        return spoken_only(spoken, [written, *figures])
    return both(spoken, written, figures, _halves(amount, f"{scale} {plural}"))


def single_digits(digits: str) -> Value:
    """Returns digits that are spoken one by one. In figures, only a first zero distinguishes them from a number."""
    spoken = in_words.digit_by_digit(digits)
    figures = (digits,) if digits.startswith("0") else ()
    # `two oh five` is a time.
    words = (spoken,) if re.fullmatch("[1-9]0[1-9]", digits) else (spoken, spoken.replace("zero", "oh"))
    return Value(spoken, digits, figures, words)


def telephone(groups: Sequence[str], country: str = "") -> Value:
    """Returns a telephone number, or another number in groups of digits."""
    spoken, written = ", ".join(map(in_words.digit_by_digit, groups)), "-".join(groups)
    figures = []
    if list(map(len, groups)) == [3, 3, 4]:
        figures = [" ".join(groups), ".".join(groups), f"({groups[0]}) {groups[1]}-{groups[2]}"]
    if country:
        figures = [f"+{country} {figure}" for figure in (*figures, written)]
        spoken, written = f"plus {in_words.digit_by_digit(country)}, {spoken}", f"+{country}-{written}"
    return both(spoken, written, figures, [spoken.replace("zero", "oh")])


def dotted(parts: Sequence[int]) -> Value:
    """Returns a version or an Internet address."""
    return both(" dot ".join(map(cardinal, parts)), ".".join(map(str, parts)))


def measure(amount: str, unit: str) -> Value:
    """Returns an amount of a unit."""
    noun = _noun(unit, amount in ("1", "-1"))
    spoken = f"{in_words.amount(amount)} {noun}"
    figures = [f"{amount} {symbol}" for symbol in (unit, *ALIASES.get(unit, ()))]
    figures += [f"{amount} {noun}", *(f"{amount}{symbol}" for symbol in ALIASES.get(unit, ())[:1])]
    if unit not in UNITS.values():
        figures.append(f"{amount}{unit}")
    readings = [spoken.replace("minus", "negative")] if amount.startswith("-") else []
    if re.search("meter|liter", noun):
        british = re.sub("(met|lit)er", r"\1re", noun)
        figures.append(f"{amount} {british}")
        readings.append(spoken.replace(noun, british))
    if unit in ("ft", "in"):
        figures.append(f"""{amount}{"'" if unit == "ft" else '"'}""")
    # `five pounds` are money.
    if unit == "lb":
        return spoken_only(spoken, figures)
    return both(spoken, _written(amount, unit), figures, readings)


def halved_measure(whole: int, numerator: int, denominator: int, unit: str) -> Value:
    """Returns an amount of a unit with a fraction: `half a mile`, `2 1/2 miles`. `whole` may be 0."""
    part, figures = in_words.fraction(numerator, denominator), f"{numerator}/{denominator}"
    glyph = GLYPHS[numerator, denominator]
    singular, noun = _noun(unit, singular=True), _noun(unit, singular=whole == 0)
    if whole:
        spoken = f"{cardinal(whole)} and {part.replace('one half', 'a half')} {noun}"
        amounts = [f"{whole} {figures}", f"{whole}{glyph}", f"{whole} {glyph}"]
        readings = [spoken.replace("and one ", "and a ")]
        if whole == 1 and denominator == 2:
            readings.append(f"{in_words.article(singular)} {singular} and a half")
    else:
        of = f"{in_words.article(singular)} {singular}"
        spoken = f"half {of}" if denominator == 2 else f"{part} of {of}"
        amounts = [figures, glyph]
        readings = [f"{part} {singular}", f"{part.replace('one ', 'a ')} {singular}"] if numerator == 1 else []
        if numerator == 1 and denominator > 2:
            readings.append(spoken.replace("one ", "a ", 1))
    typed = [f"{amount} {symbol}" for amount in amounts for symbol in (unit, noun, *ALIASES.get(unit, ()))]
    if unit == "lb":
        return spoken_only(spoken, typed)
    return both(spoken, _written(amounts[0], unit, noun), typed, readings)


def _noun(unit: str, singular: bool) -> str:
    first, *rest = [UNITS[unit]] if UNITS[unit] in PLURALS else UNITS[unit].split(" ")
    return " ".join((first if singular else PLURALS.get(first, f"{first}s"), *rest))


def _written(amount: str, unit: str, noun: str = "") -> str:
    if unit in NOUNS:
        return f"{amount} {noun or _noun(unit, amount in ('1', '-1'))}"
    return f"{amount}{'' if unit.startswith('°') else ' '}{unit}"


def height(feet: int, inches: int) -> Value:
    """Returns a length in feet and inches, as people give their height."""
    foot, inch = ("foot" if feet == 1 else "feet"), ("inch" if inches == 1 else "inches")
    tall, rest = cardinal(feet), cardinal(inches)
    if not inches:
        return spoken_only(f"{tall} {foot}", [f"{feet}'0\"", f"{feet}'0", f"{feet}' 0\"", f"{feet} ft 0 in"])
    figures = [f"{feet}' {inches}\"", f"{feet}'{inches}", f"{feet}'{inches}''", f"{feet} {foot} {inches} {inch}"]
    figures += [f"{feet} ft {inches} in", f"{feet} ft {inches}", f"{feet}ft {inches}in", f"{feet} ft. {inches} in."]
    readings = [f"{tall} foot {rest}", f"{tall} {foot} {rest}", f"{tall} foot {rest} {inch}"]
    readings.append(f"{tall} {foot} and {rest} {inch}")
    return both(f"{tall} {foot} {rest} {inch}", f"{feet}'{inches}\"", figures, readings)


def interval(first: int, last: int, unit: str = "") -> Value:
    """Returns a range of whole numbers, of percentages, of dollars or of a unit; of years, if both can be years. If
    `first` is not below `last`, it is a score. Words that are a time, `five to ten`, are not written as a range.
    """
    count = year if first in YEARS and last in YEARS and not unit else cardinal
    spoken = f"{count(first)} to {count(last)}"
    figures = [f"{first}-{last}"]
    if unit == "$":
        figures = [f"${first}-{last}", f"${first}-${last}", f"${first} to ${last}", f"{first}-{last} dollars"]
        return both(f"{spoken} dollars", figures[0], figures[1:])
    if unit == "%":
        figures = [f"{first}-{last}%", f"{first}%-{last}%", f"{first} to {last}%", f"{first}-{last} percent"]
        return both(f"{spoken} percent", figures[0], figures[1:])
    if unit:
        noun = _noun(unit, False)
        figures = [f"{first}-{last} {each}" for each in (unit, noun)] + [f"{first} to {last} {noun}"]
        if unit == "lb":
            return spoken_only(f"{spoken} {noun}", figures)
        return both(f"{spoken} {noun}", _written(f"{first}-{last}", unit), figures)
    if first < last:
        figures += [f"{first} - {last}", f"{first} to {last}"]
    if first in MINUTES and 1 <= last <= 12:
        return spoken_only(spoken, figures)
    return both(spoken, figures[0], figures[1:])


def ratio(first: int, last: int) -> Value:
    """Returns a ratio whose second number has one digit, so that it can't be a time: `16:9`. Its words are a range."""
    return spoken_only(f"{cardinal(first)} to {cardinal(last)}", [f"{first}:{last}"])


def roman_numeral(number: int) -> Value:
    """Returns a Roman numeral."""
    return spoken_only(cardinal(number), [in_words.roman(number)])


def numbered(number: int) -> Value:
    """Returns `#5`."""
    return both(f"number {cardinal(number)}", f"#{number}", [f"No. {number}", f"number {number}"])


def _halves(amount: str, noun: str) -> list[str]:
    """Returns the words with `half` for an amount that ends in .5: `two and a half million`, `half a million`."""
    whole, _, decimals = amount.replace(",", "").partition(".")
    if decimals != "5" or whole.startswith("-"):
        return []
    if whole == "0":
        return [f"half a {noun}"]
    scale, *rest = noun.split(" ")
    inverted = [" ".join((f"{number} {scale} and a half", *rest)) for number in ("one", "a")]
    return [
        f"{cardinal(int(whole))} and a half {noun}",
        *(inverted if whole == "1" and scale in in_words.SCALES else []),
    ]


def _typed(figures: str, generator: random.Random) -> str:
    """Returns figures as people type them: often without commas in thousands, rarely with spaces instead."""
    return re.sub(r"(?<=\d),(?=\d{3})", generator.choices((",", "", " "), (47, 50, 3))[0], figures)


def _heard(words: str, generator: random.Random) -> str:
    """Returns words as people write them: without hyphens, with `and`, with `a` for `one`, misspelled."""
    if generator.random() < 0.3:
        words = AND.sub(r"\g<0>and ", words)
    if generator.random() < 0.3:
        words = words.replace("-", " ")
    if generator.random() < 0.3:
        words = ARTICLE.sub("a ", words)
    if generator.random() < 0.03:
        for right, wrong in MISSPELLED.items():
            words = words.replace(right, wrong)
    return words
