"""Times of day, durations, dates, years and decades in both notations: `2:30` and `half past two`."""

from calendar import day_name, month_name
from datetime import date
from importlib import import_module
from itertools import product
from typing import Any, Final, TypeAlias

from attendant.recipes.dates.data import ordinal_ending

# The folder's name is not an identifier.
in_words: Any = import_module("attendant.recipes.normalize-numbers-en.words")
values: Any = import_module("attendant.recipes.normalize-numbers-en.values")
cardinal, ordinal, year = in_words.cardinal, in_words.ordinal, in_words.year
both, spoken_only = values.both, values.spoken_only
Value: TypeAlias = Any  # values.Value


SHORT_YEARS: Final = range(1969, 2069)
"""The years that are also written with two digits; the centuries are those of POSIX."""


def time_of_day(hour: int, minute: int, half: str = "") -> Value:
    """Returns a time of day; `half` is `a.m.`, `p.m.` or empty. Words of hours above 12 with minutes are years."""
    end = f" {half}" if half else ""
    written = f"{hour}:{minute:02}{end}"
    figures = [f"0{hour}:{minute:02}{end}"] if hour < 10 else []
    if not 1 <= hour <= 12:
        if not minute:
            return both(f"{cardinal(hour)} hundred hours", written, figures)
        return spoken_only(in_words.two_part(hour, minute), [written, *figures])
    clock = f"{cardinal(hour)} o'clock"
    whole = cardinal(hour) if half else clock
    stem = in_words.two_part(hour, minute) if minute else whole
    stems = [stem, *_relative_times(hour, minute)] if not half or hour != 11 or minute <= 30 else [stem]
    if half and not minute:
        stems.append(clock)
    if not half:
        if not minute:
            figures += [f"{hour} o'clock", f"{hour} oclock", f"{hour}:00 o'clock"]
            stems.append(clock.replace("'", ""))
        return both(stem, written, figures, stems[1:])
    short = half.replace(".", "")
    figures += [f"{hour}:{minute:02} {short}", f"{hour}:{minute:02}{short}", written.removesuffix(".")]
    figures += [f"{hour}.{minute:02} {short}", f"{hour}.{minute:02}{short}"]
    if not minute:
        figures += [f"{hour} {short}", f"{hour}{short}", f"{hour} {half}", f"{hour} {half}".removesuffix(".")]
    ends = (half, short, " ".join(short), *_parts_of_day(hour, half))
    readings = [f"{each} {heard}" for each in stems for heard in ends]
    if (hour == 12 and minute <= 30) or (hour == 11 and minute > 30):
        twelve = "noon" if (half == "p.m.") == (hour == 12) else "midnight"
        readings += [each.replace("twelve", twelve) for each in _relative_times(hour, minute)]
    return both(f"{stem}{end}", written, figures, readings)


def interval_of_times(first: tuple[int, int, str], last: tuple[int, int, str]) -> Value:
    """Returns a range between two times of day, each an hour, a minute and `a.m.` or `p.m.`: `9am-5pm`."""
    start, end = time_of_day(*first), time_of_day(*last)
    shorts = []
    for gap, dots in product(("", " "), ("", ".")):
        typed = [f"{hour}{f':{minute:02}' if minute else ''}{gap}" for hour, minute, _ in (first, last)]
        halves = [half.replace(".", dots) for _, _, half in (first, last)]
        shorts.append([each + half for each, half in zip(typed, halves, strict=True)])
    figures = [dash.join(pair) for pair in ([start.written, end.written], *shorts) for dash in ("-", " - ", " to ")]
    spoken = f"{start.spoken} to {end.spoken}"
    return both(spoken, figures[0], figures[1:], [f"from {spoken}", spoken.replace(".", "")])


def _relative_times(hour: int, minute: int) -> list[str]:
    """Returns the forms of a time on the dial: `ten past three`, `a quarter to four`."""
    if not minute:
        return []
    distance = minute if minute <= 30 else 60 - minute
    words = ("past", "after") if minute <= 30 else ("to", "till")
    name = cardinal(hour if minute <= 30 else hour % 12 + 1)
    if distance == 30:
        return [f"half past {name}"]
    counts = [f"{cardinal(distance)} {'minute' if distance == 1 else 'minutes'}"]
    if distance in values.MINUTES:
        counts.append(cardinal(distance))
    if distance == 15:
        counts += ["quarter", "a quarter"]
    return [f"{count} {word} {name}" for count in counts for word in words]


def _parts_of_day(hour: int, half: str) -> list[str]:
    if half == "a.m.":
        return ["at night"] if hour == 12 else ["in the morning"]
    parts = ["in the afternoon"] if hour <= 5 or hour == 12 else []
    if 5 <= hour <= 9:
        parts.append("in the evening")
    return [*parts, "at night"] if 8 <= hour <= 11 else parts


def _short_months(month: int) -> list[str]:
    name = month_name[month]
    return [name[:3], f"{name[:3]}.", *(["Sept", "Sept."] if name == "September" else [])]


def calendar_date(day: date, weekday: bool = False) -> Value:
    """Returns a date. The month comes first in figures with slashes, except if the day is above 12; the day comes
    first in figures with dots. A weekday is spoken, and left out of the written form, which implies it.
    """
    month, spoken_day, spoken_year = month_name[day.month], ordinal(day.day), year(day.year)
    nth = f"{day.day}{ordinal_ending(day.day)}"
    spoken = f"{month} {spoken_day}, {spoken_year}"
    readings = [
        f"the {spoken_day} of {month}, {spoken_year}", f"the {spoken_day} of {month} {spoken_year}",
        f"{spoken_day} of {month} {spoken_year}", f"{month} {spoken_day} {spoken_year}",
        f"{month} {cardinal(day.day)}, {spoken_year}", f"{month} the {spoken_day}, {spoken_year}",
    ]  # fmt: skip
    if 2010 <= day.year < 2100:
        readings.append(f"{month} {spoken_day}, {cardinal(day.year)}")
    figures = [f"{month} {day.day}, {day.year}", f"{day.day} {month} {day.year}", f"{month} {nth}, {day.year}"]
    figures += [f"{short} {day.day}, {day.year}" for short in _short_months(day.month)]
    if weekday:
        name = day_name[day.weekday()]
        names = (name, name[:3])
        forms = [f"{each}{comma} {figure}" for figure in figures for each in names for comma in (",", "")]
        words = [f"{name}{comma} {reading}" for reading in (spoken, *readings) for comma in (",", "")]
        return values.Value(f"{name}, {spoken}", day.isoformat(), tuple(forms), tuple(words))
    figures += [
        f"{month} {day.day} {day.year}", f"{nth} of {month} {day.year}", f"the {nth} of {month}, {day.year}",
        f"{nth} {month} {day.year}", f"{month} {nth} {day.year}", f"{day.day}-{month[:3]}-{day.year}",
        f"{day.year}/{day.month:02}/{day.day:02}", f"{day.year}.{day.month:02}.{day.day:02}",
        *(f"{day.day} {short} {day.year}" for short in _short_months(day.month)),
    ]  # fmt: skip
    years = [str(day.year)]
    if day.year in SHORT_YEARS:
        short = f"{day.year % 100:02}"
        years.append(short)
        figures += [f"{month[:3]} {day.day}, '{short}", f"{day.day} {month[:3]} {short}"]
        figures += [f"{day.day}-{month[:3]}-{short}", f"{month} {day.day}, '{short}"]
    for each in years:
        figures += [f"{day.month}/{day.day}/{each}", f"{day.month:02}/{day.day:02}/{each}"]
        figures.append(f"{day.month:02}-{day.day:02}-{each}")
        if day.day > 12:
            figures += [f"{day.day}/{day.month}/{each}", f"{day.day}/{day.month:02}/{each}"]
            figures.append(f"{day.day}-{day.month:02}-{each}")
    figures += [f"{day.day}.{day.month}.{day.year}", f"{day.day:02}.{day.month:02}.{day.year}"]
    return both(spoken, day.isoformat(), figures, readings)


def day_of_month(month: int, day: int, weekday: str = "") -> Value:
    """Returns a day without its year; `weekday` is a name or empty."""
    name, nth = month_name[month], f"{day}{ordinal_ending(day)}"
    spoken, written = f"{name} {ordinal(day)}", f"{name} {day}"
    figures, readings = [f"{name} {nth}", f"{day} {name}"], [f"the {ordinal(day)} of {name}"]
    figures += [f"{short} {day}" for short in _short_months(month)]
    if weekday:
        days = [f"{each}{comma}" for each in (weekday, weekday[:3]) for comma in (",", "")]
        figures = [f"{each} {figure}" for each in days for figure in (written, *figures)]
        readings = [f"{each} {reading}" for each in days[:2] for reading in (spoken, *readings)]
        return both(f"{weekday}, {spoken}", f"{weekday}, {written}", figures, readings)
    figures += [f"{nth} of {name}", f"the {nth} of {name}", f"{nth} {name}", f"{name} the {nth}"]
    figures += [form for short in _short_months(month) for form in (f"{short} {nth}", f"{day} {short}")]
    readings += [f"{ordinal(day)} of {name}", f"{name} {cardinal(day)}", f"{name} the {ordinal(day)}"]
    return both(spoken, written, figures, readings)


def month_of_year(month: int, number: int) -> Value:
    """Returns a month of a year."""
    name = month_name[month]
    figures = [f"{name}, {number}", f"{month}/{number}", f"{month:02}/{number}", f"{number}-{month:02}"]
    figures += [f"{short} {number}" for short in _short_months(month)]
    if number in SHORT_YEARS:
        figures += [f"{name} '{number % 100:02}", f"{name[:3]} '{number % 100:02}"]
    return both(f"{name} {year(number)}", f"{name} {number}", figures, [f"{name}, {year(number)}"])


def bare_year(number: int) -> Value:
    """Returns a year. Its bare figures are a number; its bare words are a year if they differ from the number's."""
    if year(number) == cardinal(number):
        return in_year(number)
    return values.Value(year(number), str(number), words=(year(number),))


def in_year(number: int) -> Value:
    """Returns a year after `in`."""
    return both(f"in {year(number)}", f"in {number}")


def year_of_era(number: int, era: str) -> Value:
    """Returns a year with its era, `AD` or `BC`."""
    dotted = ".".join(era) + "."
    figures = [f"{number} {dotted}", *([f"AD {number}"] if era == "AD" else [])]
    return both(f"{year(number)} {era}", f"{number} {era}", figures, [f"{year(number)} {dotted}"])


def decade(number: int) -> Value:
    """Returns a decade from the twenties on; below 100, without its century."""
    century, tens = divmod(number, 100)
    plural = f"{in_words.TENS[tens // 10].removesuffix('y')}ies"
    spoken = f"{cardinal(century)} {plural}" if century else plural
    figures = [f"{number}'s", f"the {number}s", f"the {number}'s"]
    if not century:
        figures += [f"'{number}s", f"’{number}s", f"the '{number}s"]
    return both(spoken, f"{number}s", figures, [f"the {spoken}"])


def duration(hours: int, minutes: int) -> Value:
    """Returns hours and minutes."""
    hour, minute = ("hour" if hours == 1 else "hours"), ("minute" if minutes == 1 else "minutes")
    figures = [f"{hours}h {minutes}m", f"{hours}h{minutes}m", f"{hours} h {minutes} min", f"{hours} hr {minutes} min"]
    figures += [f"{hours}h {minutes}min", f"{hours} hrs {minutes} mins", f"{hours} {hour} and {minutes} {minute}"]
    spoken = f"{cardinal(hours)} {hour} {cardinal(minutes)} {minute}"
    readings = [spoken.replace(hour, f"{hour} and", 1)]
    if hours == 1:
        readings += [each.replace("one", "an", 1) for each in (spoken, *readings)]
    return both(spoken, f"{hours} {hour} {minutes} {minute}", figures, readings)
