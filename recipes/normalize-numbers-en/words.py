"""Numbers, years and strings of digits in American English words, and Roman numerals."""

import re
from typing import Final

ONES: Final = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
TENS: Final = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
SCALES: Final = ("", "thousand", "million", "billion", "trillion", "quadrillion", "quintillion")
ORDINALS: Final = {
    "one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth",
    "twelve": "twelfth",
}  # fmt: skip
"""The ordinals that are not made by an ending alone."""

DENOMINATORS: Final = {2: ("half", "halves"), 4: ("quarter", "quarters")}
"""The denominators that are not spoken as an ordinal."""

ROMAN: Final = (
    (1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"), (40, "XL"), (10, "X"),
    (9, "IX"), (5, "V"), (4, "IV"), (1, "I"),
)  # fmt: skip


def cardinal(number: int) -> str:
    """Returns a whole number below 10**21 in words: `two hundred five thousand thirty-one`."""
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
    """Returns a year up to 9999 in words: `nineteen oh five`, `two thousand five`, `twenty twelve`, `five hundred`."""
    century, rest = divmod(number, 100)
    if number < 1000 or (century % 10 == 0 and rest < 10):
        return cardinal(number)
    return two_part(century, rest) if rest else f"{cardinal(century)} hundred"


def two_part(first: int, last: int) -> str:
    """Returns two numbers below 100 as years and times are read: `nineteen oh five`, `two thirty`."""
    return f"{cardinal(first)} {'oh ' if last < 10 else ''}{cardinal(last)}"


def fraction(numerator: int, denominator: int) -> str:
    """Returns a fraction in words: `one half`, `three quarters`, `five thirds`, `two hundredths`."""
    part = ordinal(denominator).removeprefix("one ")
    singular, plural = DENOMINATORS.get(denominator) or (part, f"{part}s")
    return f"{cardinal(numerator)} {singular if numerator == 1 else plural}"


def by_hundreds(number: int) -> list[str]:
    """Returns the reading of a number by its hundreds, `fifteen hundred twenty`, if it has one."""
    hundreds, rest = divmod(number, 100)
    if not 10 < hundreds < 100 or hundreds % 10 == 0:
        return []
    return [f"{cardinal(hundreds)} hundred{f' {cardinal(rest)}' if rest else ''}"]


def amount(figures: str) -> str:
    """Returns a number in figures, which may have commas and decimals, in words."""
    whole, _, decimals = figures.replace(",", "").partition(".")
    return f"{cardinal(int(whole))}{f' point {digit_by_digit(decimals)}' if decimals else ''}"


def digit_by_digit(digits: str) -> str:
    """Returns a string of digits as it is read over the telephone: `007` is `zero zero seven`."""
    return " ".join(ONES[int(digit)] for digit in digits)


def article(noun: str) -> str:
    """Returns `a` or `an`, as English has it before a noun."""
    return "an" if noun.startswith(("a", "e", "i", "o", "hour")) else "a"


def roman(number: int) -> str:
    """Returns a number from 1 to 3999 as a Roman numeral."""
    numeral = ""
    for value, letters in ROMAN:
        numeral += letters * (number // value)
        number %= value
    return numeral


def _below_thousand(number: int) -> str:
    hundreds, rest = divmod(number, 100)
    words = [ONES[hundreds], "hundred"] if hundreds else []
    if rest >= 20:
        words.append(TENS[rest // 10] + (f"-{ONES[rest % 10]}" if rest % 10 else ""))
    elif rest or not hundreds:
        words.append(ONES[rest])
    return " ".join(words)
