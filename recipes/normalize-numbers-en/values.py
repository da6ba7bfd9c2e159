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
variants: Any = import_module("attendant.recipes.normalize-numbers-en.variants")
cardinal, ordinal, year = in_words.cardinal, in_words.ordinal, in_words.year

CURRENCIES: Final = {
    "$": ("dollar", "dollars", "cent", "cents"),
    "€": ("euro", "euros", "cent", "cents"),
    "£": ("pound", "pounds", "penny", "pence"),
    "₹": ("rupee", "rupees", "paisa", "paise"),
}
CODES: Final = {"$": "USD", "€": "EUR", "£": "GBP", "₹": "INR"}
SHORT_CENTS: Final = {"$": "¢", "£": "p"}
YEN: Final = "¥"

UNITS: Final = {
    "mm": "millimeter", "cm": "centimeter", "m": "meter", "km": "kilometer", "mi": "mile", "ft": "foot", "in": "inch",
    "yd": "yard", "mg": "milligram", "g": "gram", "kg": "kilogram", "lb": "pound", "oz": "ounce", "ton": "ton",
    "ml": "milliliter", "L": "liter", "gal": "gallon", "tsp": "teaspoon", "tbsp": "tablespoon", "cup": "cup",
    "pint": "pint", "quart": "quart", "fl oz": "fluid ounce", "m²": "square meter", "km²": "square kilometer",
    "sq ft": "square foot", "acre": "acre", "m³": "cubic meter", "mph": "mile per hour", "km/h": "kilometer per hour",
    "m/s": "meter per second", "KB": "kilobyte", "MB": "megabyte", "GB": "gigabyte", "TB": "terabyte",
    "Mbps": "megabit per second", "Gbps": "gigabit per second", "px": "pixel", "rpm": "revolution per minute",
    "Hz": "hertz", "kHz": "kilohertz", "MHz": "megahertz", "GHz": "gigahertz", "W": "watt", "kW": "kilowatt",
    "kWh": "kilowatt-hour", "V": "volt", "cal": "calorie", "hp": "horsepower", "dB": "decibel", "ms": "millisecond",
    "s": "second", "min": "minute", "h": "hour", "day": "day", "week": "week", "month": "month", "year": "year",
    "decade": "decade", "century": "century", "°C": "degree Celsius", "°F": "degree Fahrenheit", "°": "degree",
}  # fmt: skip
PLURALS: Final = {
    "foot": "feet", "inch": "inches", "hertz": "hertz", "kilohertz": "kilohertz", "megahertz": "megahertz",
    "gigahertz": "gigahertz", "horsepower": "horsepower", "square meter": "square meters",
    "square kilometer": "square kilometers", "square foot": "square feet", "cubic meter": "cubic meters",
    "fluid ounce": "fluid ounces", "century": "centuries",
}  # fmt: skip
ALIASES: Final = {
    "lb": ("lbs", "lbs."), "s": ("sec", "secs"), "min": ("mins",), "h": ("hr", "hrs"), "ft": ("ft.",), "in": ("in.",),
    "km/h": ("kph", "kmh", "km/hr"), "m²": ("m2",), "km²": ("km2",), "m³": ("m3",), "sq ft": ("sqft",), "°": ("deg",),
    "°C": ("C", "ºC", "degrees C", "deg C"), "°F": ("F", "ºF", "degrees F", "deg F"), "mi": ("mi.",), "oz": ("oz.",),
    "kg": ("kgs",), "g": ("gm",), "cal": ("cals",), "week": ("wk", "wks"), "month": ("mo", "mos"),
    "year": ("yr", "yrs"),
}  # fmt: skip
"""Other ways to type a unit."""

NOUN_VARIANTS: Final = (
    ("(met|lit)er", r"\1re"), ("per hour$", "an hour"), ("kilogram", "kilo"), ("^degrees? (?=[CF])", ""),
)  # fmt: skip
"""Other words for a unit, as patterns and what replaces them."""

NOUNS: Final = (
    "s", "min", "h", "day", "week", "month", "year", "decade", "century", "cup", "pint", "quart", "acre", "cal", "ton",
)  # fmt: skip
"""The units that are written as a noun."""

HALVED_UNITS: Final = ("mi", "km", "in", "ft", "yd", "lb", "oz", "gal", "L", "tsp", "tbsp", "cup", "h", "year", "ton")
"""The units of which people have half a one, or two and a half."""

GLYPHS: Final = {
    (1, 2): "½", (1, 3): "⅓", (2, 3): "⅔", (1, 4): "¼", (3, 4): "¾", (1, 5): "⅕", (2, 5): "⅖", (3, 5): "⅗", (4, 5): "⅘",
    (1, 6): "⅙", (5, 6): "⅚", (1, 7): "⅐", (1, 8): "⅛", (3, 8): "⅜", (5, 8): "⅝", (7, 8): "⅞", (1, 9): "⅑",
    (1, 10): "⅒",
}  # fmt: skip

MINUTES: Final = range(5, 30, 5)
"""The minutes before or after the hour that are a time without the word: `ten to four`."""

YEARS: Final = range(1300, 2100)
"""The numbers that are years on both sides of a range."""

NOTHING: Final = ("nil", "nothing", "zip")
"""Words for zero in a score."""

RAISED: Final = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")

SIGNS: Final = {"-": ("minus", "negative"), "+": ("plus", "positive")}
"""Signs with their words; the first one is spoken."""


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

    def plain_pairs(self) -> Iterator[Pair]:
        """Yields a pair for each direction, with its first form as it is."""
        if self.figures:
            yield Pair(self.figures[0], self.spoken)
        if self.words:
            yield Pair(self.words[0], self.written)

    def pairs(self, generator: random.Random) -> Iterator[Pair]:
        """Yields a pair for each direction. Its source is one of the forms, drawn at random."""
        if self.figures:
            figures = variants.typed(generator.choice(self.figures), generator)
            yield Pair(variants.ended(figures, generator), self.spoken)
        if self.words:
            words = variants.heard(generator.choice(self.words), generator)
            yield Pair(variants.ended(words, generator), self.written)


def both(spoken: str, written: str, figures: Sequence[str] = (), words: Sequence[str] = ()) -> Value:
    """Returns a value whose outputs are inputs of the other direction, with further forms."""
    return Value(spoken, written, (written, *figures), (spoken, *words))


def spoken_only(spoken: str, figures: Sequence[str]) -> Value:
    """Returns a value that is converted to words alone."""
    return Value(spoken, "", tuple(figures))


def signed(sign: str, value: Value) -> Value:
    """Returns a value with a sign: `-` or `+`; without one, the value."""
    if not sign:
        return value
    figures = [f"{sign}{figure}" for figure in value.figures if not figure[0].isalpha()]
    figures += [f"{figure[0]}{sign}{figure[1:]}" for figure in value.figures if figure[0] in CURRENCIES]
    # `minus thousand` is not said.
    readings = [each for each in value.words if each.split(" ")[0] not in ("hundred", *in_words.SCALES[1:])]
    words = [f"{word} {each}" for each in readings for word in SIGNS[sign]]
    return Value(f"{SIGNS[sign][0]} {value.spoken}", f"{sign}{value.written}", tuple(figures), tuple(words))


def whole_number(number: int) -> Value:
    spoken = cardinal(number)
    readings = []
    short = spoken.removeprefix("one ")
    if (short != spoken and short.startswith(("hundred", "thousand"))) or short in in_words.SCALES[1:]:
        readings.append(short)
    # `nineteen hundred` is a year.
    if number not in range(1300, 2000):
        readings += in_words.by_hundreds(number)
    return both(spoken, f"{number:,}", words=readings)


def ordinal_number(number: int, the: str = "") -> Value:
    """Returns an ordinal: `21st`; `the` is `the ` or empty."""
    spoken = ordinal(number)
    short = spoken.removeprefix("one ")
    figures, readings = [f"{the}{number:,} {ordinal_ending(number)}"], [f"{the}{short}"] if " " not in short else []
    return both(f"{the}{spoken}", f"{the}{number:,}{ordinal_ending(number)}", figures, readings)


def decimal(number: int, decimals: str) -> Value:
    """Returns a number with decimals, which are spoken digit by digit."""
    spoken = f"{cardinal(number)} point {in_words.digit_by_digit(decimals)}"
    readings = [f"{cardinal(number)} point {in_words.digit_by_digit(decimals).replace('zero', 'oh')}"]
    if number:
        return both(spoken, f"{number:,}.{decimals}", words=readings)
    return both(spoken, f"0.{decimals}", [f".{decimals}"], [*readings, spoken.removeprefix("zero ")])


def scaled(amount: str, scale: str) -> Value:
    """Returns an amount such as `2.5 million`. The words of a whole amount, `five million`, are written in digits."""
    spoken, written = f"{in_words.amount(amount)} {scale}", f"{amount} {scale}"
    shorts = {"thousand": ("k",), "million": (" mil", " mn", "mn"), "billion": ("b", "bn", " bn"), "trillion": ("tn",)}
    short = [f"{amount}{each}" for each in shorts.get(scale, ())]
    return (
        both(spoken, written, short, _halves(amount, scale))
        if "." in amount
        else spoken_only(spoken, [written, *short])
    )


def power(base: str, exponent: int) -> Value:
    """Returns a power: `2^10`, `10²`."""
    name, (spoken, *readings) = in_words.amount(base), _exponents(exponent)
    typed = (f"^{exponent}", f"**{exponent}", f" ^ {exponent}", *[str(exponent).translate(RAISED)] * 2)
    figures = [f"{base}{each}" for each in typed]
    return both(f"{name} {spoken}", figures[0], figures[1:], [f"{name} {each}" for each in readings])


def scientific(amount: str, exponent: int) -> Value:
    """Returns a number in scientific notation: `6.02×10^23`, `6.02e23`."""
    start, (spoken, *readings) = f"{in_words.amount(amount)} times ten", _exponents(exponent)
    exponents = [f"{exponent}", f"{exponent:+}", f"{exponent:+03}"]
    figures = [f"{amount}{letter}{each}" for letter in "eE" for each in exponents]
    for times in ("×", " × ", "x", " x ", "*"):
        figures += [f"{amount}{times}10^{exponent}", f"{amount}{times}10{str(exponent).translate(RAISED)}"]
    return both(f"{start} {spoken}", f"{amount}×10^{exponent}", figures, [f"{start} {each}" for each in readings])


def _exponents(exponent: int) -> list[str]:
    """Returns the words for an exponent: `to the sixth`, `squared`, `to the minus three`."""
    if exponent < 0:
        number = cardinal(-exponent)
        return [f"to the {'power of ' * power}{sign} {number}" for power in (0, 1) for sign in SIGNS["-"]]
    words = [
        f"to the {ordinal(exponent)}",
        f"to the {ordinal(exponent)} power",
        f"to the power of {cardinal(exponent)}",
    ]
    return [*({2: ["squared"], 3: ["cubed"]}.get(exponent) or []), *words]


def percentage(amount: str) -> Value:
    spoken = f"{in_words.amount(amount)} percent"
    readings = [spoken.replace("percent", "per cent"), *_halves(amount, "percent")]
    figures = [f"{amount} %", f"{amount} percent", f"{amount} per cent", f"{amount} pct"]
    return both(spoken, f"{amount}%", figures, readings)


def fraction(numerator: int, denominator: int, whole: int = 0) -> Value:
    """Returns a fraction. No `hundred and` can be its beginning, because its numerator is below 100, or its
    denominator is 1,000. If nothing is the like of `quarters` for its denominator, it is spoken with `over`.
    """
    written, glyph = f"{numerator}/{denominator}", GLYPHS.get((numerator, denominator))
    over = f"{cardinal(numerator)} over {cardinal(denominator)}"
    if denominator < 2 or (denominator > 100 and denominator != 1000):
        return both(over, written)
    part = in_words.fraction(numerator, denominator)
    readings = [part.replace("quarter", "fourth")] if denominator == 4 else []
    if numerator < 20 and denominator <= 20:
        readings += [each.replace(" ", "-") for each in (part, *readings)]
    if numerator == 1 and denominator <= 20:
        readings += [
            f"{in_words.article(noun)} {noun}" for noun in (re.sub("one[ -]", "", word) for word in (part, *readings))
        ]
    if whole:
        spoken = f"{cardinal(whole)} and {'a half' if (numerator, denominator) == (1, 2) else part}"
        figures = [f"{whole} and {written}", f"{whole}-{written}"]
        figures += [f"{whole}{glyph}", f"{whole} {glyph}"] if glyph else []
        return both(
            spoken, f"{whole} {written}", figures, [f"{cardinal(whole)} and {each}" for each in (part, *readings)]
        )
    figures = [f"{numerator}\N{FRACTION SLASH}{denominator}", *([glyph] if glyph else [])]
    readings.append(over)
    # `one hundredth` is an ordinal.
    if numerator == 1 and denominator in (100, 1000):
        return Value(part, written, (written, *figures), (over,))
    # `third` is an ordinal.
    if numerator == 1 and denominator in in_words.DENOMINATORS:
        readings.append(part.removeprefix("one "))
    return both(part, written, figures, readings)


def dozens(count: int) -> Value:
    words = (f"{cardinal(count)} dozen", *(("dozen",) if count == 1 else ()))
    return Value(f"{cardinal(count)} dozen", f"{12 * count:,}", (f"{count} dozen",), words)


def phrases() -> list[Value]:
    """Returns the values that have words of their own."""
    return [
        Value("twelve noon", "12:00 p.m.", ("12 noon", "12:00 noon"), ("noon", "twelve noon", "midday")),
        Value("twelve midnight", "12:00 a.m.", ("12 midnight", "12:00 midnight"), ("midnight", "twelve midnight")),
        Value("half a dozen", "6", ("1/2 dozen", "½ dozen"), ("half a dozen", "half dozen", "a half dozen")),
        Value("zero", "0", words=("nought", "naught")),
        both("twenty-four seven", "24/7"),
    ]


def money(symbol: str, whole: int, cents: int = 0) -> Value:
    if symbol == YEN:
        figures = [f"{YEN} {whole:,}", f"{whole:,} yen", f"{whole:,}{YEN}", f"JPY {whole:,}", f"{whole:,} JPY"]
        return both(f"{cardinal(whole)} yen", f"{YEN}{whole:,}", figures)
    singular, plural, cent, many_cents = CURRENCIES[symbol]
    noun, small_noun = singular if whole == 1 else plural, cent if cents == 1 else many_cents
    large, small = f"{cardinal(whole)} {noun}", f"{cardinal(cents)} {small_noun}"
    amount = f"{whole:,}.{cents:02}" if cents else f"{whole:,}"
    written, code = f"{symbol}{amount}", CODES[symbol]
    figures = [f"{symbol} {amount}", f"{amount}{symbol}", f"{amount} {symbol}", f"{written} {code}"]
    figures += [f"{code} {amount}", f"{amount} {code}", *([f"US${amount}"] if symbol == "$" else [])]
    if symbol == "₹":
        figures += [f"Rs. {amount}", f"Rs {amount}", f"Rs.{amount}"]
    if symbol == "€" and cents and whole < 1000:
        # `3,990` is a number.
        figures += [f"{whole},{cents:02} €", f"{whole},{cents:02}€", f"€{whole},{cents:02}", f"€ {whole},{cents:02}"]
    if not cents:
        figures += [f"{written}.00", f"{amount} {noun}", f"{written} {noun}"]
        return both(large, written, figures, [f"{each} {noun}" for each in in_words.by_hundreds(whole)])
    if whole:
        figures += [f"{amount} {plural}", f"{whole:,} {noun} {cents} {small_noun}"]
        figures += [f"{whole:,} {noun} and {cents} {small_noun}"]
        if cents % 10 == 0:
            figures.append(written.removesuffix("0"))
        readings = [f"{large} {small}", *([f"{large} {cardinal(cents)}"] if cents >= 10 else [])]
        return both(f"{large} and {small}", written, figures, readings)
    figures.append(f"{symbol}.{cents:02}")
    # `five cents` are of a dollar.
    if symbol == "€":
        return spoken_only(small, [written, *figures])
    shorts = [f"{cents}{SHORT_CENTS[symbol]}"] if symbol in SHORT_CENTS else []
    # Four times, since it is the form that people type.
    return both(small, written, [*figures, *shorts, *[f"{cents} {small_noun}"] * 4])


def colloquial_money(symbol: str, whole: int) -> Value:
    """Returns an amount of dollars or pounds, as people call them: `five bucks`, `twenty quid`."""
    noun = "quid" if symbol == "£" else "buck" if whole == 1 else "bucks"
    spoken, figures = (f"{count} {noun}" for count in (cardinal(whole), f"{whole:,}"))
    return Value(spoken, f"{symbol}{whole:,}", (figures,), (spoken,))


def thousands_of_dollars(count: int) -> Value:
    """Returns thousands of dollars, as people call them: `five grand`."""
    spoken = f"{cardinal(count)} grand"
    return Value(spoken, f"${count:,},000", (f"{count:,} grand", f"${count:,} grand"), (spoken,))


def scaled_money(symbol: str, amount: str, scale: str) -> Value:
    """Returns an amount such as `$2.5 million`."""
    plural = CURRENCIES[symbol][1]
    spoken, written = f"{in_words.amount(amount)} {scale} {plural}", f"{symbol}{amount} {scale}"
    shorts = {"thousand": ["k"], "million": ["M", " M", "mn", " mil"], "billion": ["B", "bn"], "trillion": ["T", "tn"]}
    figures = [f"{amount} {scale} {plural}", f"{written} {plural}", f"{amount} {scale} {CODES[symbol]}"]
    figures += [f"{symbol}{amount}{short}" for short in shorts[scale]]
    if "." not in amount:
        return spoken_only(spoken, [written, *figures])
    return both(spoken, written, figures, _halves(amount, f"{scale} {plural}"))


def single_digits(digits: str) -> Value:
    """Returns digits that are spoken one by one. In figures, a first zero distinguishes them from a number, or a length
    beyond that of the largest number.
    """
    spoken = in_words.digit_by_digit(digits)
    figures = (digits,) if digits.startswith("0") or len(digits) > 3 * len(in_words.SCALES) else ()
    # `two oh five` is a time.
    words = (spoken,) if re.fullmatch("[1-9]0[1-9]", digits) else (spoken, spoken.replace("zero", "oh"))
    doubled = [re.sub(r"\b(\w+) \1\b", r"double \1", each) for each in words if len(digits) <= 4]
    return Value(spoken, digits, figures, (*words, *(each for each in doubled if each not in words)))


def telephone(groups: Sequence[str], country: str = "") -> Value:
    """Returns a telephone number, or another number in groups of digits."""
    spoken, written = ", ".join(map(in_words.digit_by_digit, groups)), "-".join(groups)
    figures, readings = [" ".join(groups)] if len(groups) > 2 else [], []
    if list(map(len, groups))[-3:] == [3, 3, 4]:
        *first, area, exchange, line = groups
        figures.append(".".join(groups))
        figures += [" ".join((*first, f"({area}){gap}{exchange}-{line}")) for gap in ("", " ")]
        if not country:
            # Without any comma, the words are a string of digits.
            readings.append(", ".join(map(in_words.digit_by_digit, ("".join(groups[:-1]), line))))
    if country:
        figures = [f"+{country} {figure}" for figure in (*figures, written)]
        # Only its groups are known in every number.
        if country == "1":
            figures.append(f"+1{''.join(groups)}")
        spoken, written = f"plus {in_words.digit_by_digit(country)}, {spoken}", f"+{country}-{written}"
    readings.append(spoken.replace("zero", "oh"))
    if list(groups[:2]) == ["1", "800"]:
        digits = " ".join(map(in_words.digit_by_digit, groups[2:]))
        readings += [f"one eight hundred {digits}", spoken.replace("eight zero zero", "eight hundred")]
    return both(spoken, written, figures, readings)


def dotted(parts: Sequence[int]) -> Value:
    """Returns an Internet address, or a version of three numbers."""
    readings = [" point ".join(map(cardinal, parts))]
    readings.append(" dot ".join(in_words.digit_by_digit(str(part)) for part in parts))
    if max(parts) > 100:
        readings.append(" dot ".join(map(_in_two, parts)))
    return both(" dot ".join(map(cardinal, parts)), ".".join(map(str, parts)), words=readings)


def _in_two(number: int) -> str:
    """Returns a number below 1,000 as people read it in an address: `one twenty-seven`."""
    hundreds, rest = divmod(number, 100)
    spoken: str = in_words.two_part(hundreds, rest) if hundreds and rest else cardinal(number)
    return spoken


def version(parts: Sequence[int]) -> Value:
    """Returns a version with its word or letter: `v2.0`."""
    number = ".".join(map(str, parts))
    spoken = f"version {' dot '.join(map(cardinal, parts))}"
    return both(spoken, f"v{number}", [f"version {number}"], [spoken.replace("dot", "point")])


def measure(amount: str, unit: str) -> Value:
    noun = _noun(unit, amount == "1")
    spoken = f"{in_words.amount(amount)} {noun}"
    figures = [f"{amount} {symbol}" for symbol in (unit, *ALIASES.get(unit, ()))]
    figures += [f"{amount} {noun}", *(f"{amount}{symbol}" for symbol in ALIASES.get(unit, ())[:2])]
    if unit not in UNITS.values():
        figures.append(f"{amount}{unit}")
    readings = []
    for pattern, replacement in NOUN_VARIANTS:
        if (variant := re.sub(pattern, replacement, noun)) != noun:
            figures.append(f"{amount} {variant}")
            readings.append(spoken.replace(noun, variant))
    if "." not in amount:
        readings += [f"{each} {noun}" for each in in_words.by_hundreds(int(amount.replace(",", "")))]
    if unit in ("ft", "in"):
        figures.append(f"""{amount}{"'" if unit == "ft" else '"'}""")
    # `five pounds` are money.
    if unit == "lb":
        return spoken_only(spoken, figures)
    return both(spoken, _written(amount, unit), figures, readings)


def scaled_measure(amount: str, scale: str, unit: str) -> Value:
    """Returns an amount such as `93 million miles`."""
    noun = _noun(unit, singular=False)
    spoken, written = f"{in_words.amount(amount)} {scale} {noun}", _written(f"{amount} {scale}", unit)
    figures = [written, f"{amount} {scale} {noun}"]
    # `ninety-three million miles` are written in digits.
    return Value(spoken, written, tuple(figures), (spoken,)) if "." in amount else spoken_only(spoken, figures)


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
        return f"{amount} {noun or _noun(unit, amount == '1')}"
    return f"{amount}{'' if unit.startswith('°') else ' '}{unit}"


def height(feet: int, inches: int) -> Value:
    """Returns a length in feet and inches, as people give their height."""
    foot, inch = ("foot" if feet == 1 else "feet"), ("inch" if inches == 1 else "inches")
    tall, rest = cardinal(feet), cardinal(inches)
    if not inches:
        return spoken_only(f"{tall} {foot}", [f"{feet}'0\"", f"{feet}'0", f"{feet}' 0\"", f"{feet} ft 0 in"])
    figures = [f"{feet}' {inches}\"", f"{feet}'{inches}", f"{feet}'{inches}''", f"{feet} {foot} {inches} {inch}"]
    figures += [f"{feet} ft {inches} in", f"{feet} ft {inches}", f"{feet}ft {inches}in", f"{feet} ft. {inches} in."]
    figures += [f"{feet} foot {inches}", f"{feet}ft {inches}", f"{feet} {foot} {inches}"]
    readings = [f"{tall} foot {rest}", f"{tall} {foot} {rest}", f"{tall} foot {rest} {inch}"]
    readings.append(f"{tall} {foot} and {rest} {inch}")
    return both(f"{tall} {foot} {rest} {inch}", f"{feet}'{inches}\"", figures, readings)


def interval(first: float, last: float, unit: str = "") -> Value:
    """Returns a range of numbers, of percentages, of dollars or of a unit; of years, if both can be years. If `first`
    is not below `last`, it is a score: `three nil`, `two all`. Words that are a time, `five to ten`, are not written as
    a range.
    """
    if first in YEARS and last in YEARS and not unit:
        spoken, start, end = f"{year(first)} to {year(last)}", str(first), str(last)
    else:
        start, end = f"{first:,}", f"{last:,}"
        spoken = f"{in_words.amount(start)} to {in_words.amount(end)}"
    start_words = spoken.split(" to ", maxsplit=1)[0]
    dashed = f"{start}-{end}"
    if unit == "$":
        figures = [f"${start}-${end}", f"${start} to ${end}", f"{dashed} dollars", f"${start} - ${end}"]
        return both(f"{spoken} dollars", f"${dashed}", figures)
    if unit == "%":
        figures = [f"{start}%-{end}%", f"{start} to {end}%", f"{dashed} percent", f"{start}% to {end}%"]
        return both(f"{spoken} percent", f"{dashed}%", figures)
    if unit:
        noun = _noun(unit, False)
        figures = [f"{dashed} {each}" for each in (unit, noun)] + [f"{start} to {end} {each}" for each in (unit, noun)]
        if unit == "lb":
            return spoken_only(f"{spoken} {noun}", figures)
        return both(f"{spoken} {noun}", _written(dashed, unit), figures)
    figures = [dashed, f"{start} to {end}"]
    if first < last:
        figures.append(f"{start} - {end}")
    # `2001-02` is a month.
    if first in YEARS and last in YEARS and first // 100 == last // 100 and last % 100 > 12:
        figures.append(f"{start}-{end[2:]}")
    if first in MINUTES and 1 <= last <= 12:
        return spoken_only(spoken, figures)
    readings = [f"{start_words}{to}{nothing}" for to in (" ", " to ") for nothing in NOTHING] if last == 0 else []
    return both(spoken, dashed, figures, [*readings, f"{start_words} all"] if first == last else readings)


def product(amounts: Sequence[str], unit: str = "") -> Value:
    """Returns two or three sizes: `1920x1080`, `8.5 x 11 in`."""
    spoken, written = " by ".join(map(in_words.amount, amounts)), "x".join(amounts)
    figures = [cross.join(amounts) for cross in ("×", " x ", " × ", " by ")]
    if unit:
        noun = _noun(unit, singular=False)
        figures = [f"{figure} {each}" for figure in (written, *figures) for each in (unit, noun)]
        spoken, written = f"{spoken} {noun}", f"{written} {unit}"
    return both(spoken, written, figures)


def numbers_in_order(numbers: Sequence[int]) -> Value:
    """Returns a list of numbers: `1, 2, 3`."""
    *first, last = map(str, numbers)
    *first_words, last_word = map(cardinal, numbers)
    ends = [", ", " and ", ", and "]
    figures = [f"{', '.join(first)}{end}{last}" for end in ends]
    # A comma before three digits is that of thousands.
    if all(number < 100 for number in numbers[1:]):
        figures.append(",".join([*first, last]))
    spoken = [f"{', '.join(first_words)}{end}{last_word}" for end in ends]
    return both(spoken[0], figures[0], figures[1:], spoken[1:])


def ratio(first: int, last: int) -> Value:
    """Returns a ratio whose second number has one digit, or is above 59, so that it can't be a time: `16:9`, `1:500`.
    Its words are a range.
    """
    return spoken_only(f"{cardinal(first)} to {cardinal(last)}", [f"{first:,}:{last:,}", f"{first:,} : {last:,}"])


def share(first: int, last: int, between: str) -> Value:
    """Returns a share of a number: `1 in 5`, `9 out of 10`; `between` is `in` or `out of`."""
    return both(f"{cardinal(first)} {between} {cardinal(last)}", f"{first:,} {between} {last:,}")


def roman_numeral(number: int) -> Value:
    return spoken_only(cardinal(number), [in_words.roman(number)])


def numbered(number: int) -> Value:
    """Returns `#5`."""
    figures = [f"{sign}{number}" for sign in ("No. ", "No ", "No.", "number ", "# ", "№", "№ ")]
    return both(f"number {cardinal(number)}", f"#{number}", figures)


def _halves(amount: str, noun: str) -> list[str]:
    """Returns the words with `half` for an amount that ends in .5: `two and a half million`, `half a million`."""
    whole, _, decimals = amount.replace(",", "").partition(".")
    if decimals != "5":
        return []
    if whole == "0":
        return [f"half a {noun}"]
    scale, *rest = noun.split(" ")
    inverted = [" ".join((f"{number} {scale} and a half", *rest)) for number in ("one", "a")]
    return [
        f"{cardinal(int(whole))} and a half {noun}",
        *(inverted if whole == "1" and scale in in_words.SCALES else []),
    ]
