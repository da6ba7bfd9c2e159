"""Times of day, durations, dates, years and decades in both notations: `2:30` and `half past two`."""

import re
from calendar import day_name, month_name
from collections.abc import Iterator, Sequence
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

SHORT_UNITS: Final = {
    "year": ("y", "yr", "yrs"), "month": ("mo", "mos"), "week": ("w", "wk", "wks"), "day": ("d",),
    "hour": ("h", "hr", "hrs"), "minute": ("m", "min", "mins"), "second": ("s", "sec", "secs"),
}  # fmt: skip


ZONE_NAMES: Final = {
    f"{name[0]}{kind[:1]}T": f"{name} {kind}{' ' * bool(kind)}Time"
    for name in ("Eastern", "Central", "Mountain", "Pacific")
    for kind in ("", "Standard", "Daylight")
}
"""The zones that are also written in words: `6:45 p.m. Eastern Time`."""


def time_of_day(hour: int, minute: int, half: str = "") -> Value:
    """Returns a time of day; `half` is `a.m.`, `p.m.` or empty. Words of hours above 12 with minutes are years."""
    end = f" {half}" if half else ""
    written = f"{hour}:{minute:02}{end}"
    figures = [f"0{hour}:{minute:02}{end}"] if hour < 10 else []
    if not 1 <= hour <= 12:
        if not minute:
            figures += [f"{hour:02}00 hours", f"{written} hours"]
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
    figures += [f"{hour}:{minute:02} {short}", f"{hour}:{minute:02}{short}", f"{hour}:{minute:02}{half}"]
    figures.append(written.removesuffix("."))
    figures += [f"{hour}.{minute:02} {short}", f"{hour}.{minute:02}{short}"]
    if not minute:
        figures += [
            f"{hour} {short}",
            f"{hour}{short}",
            f"{hour} {half}",
            f"{hour}{half}",
            f"{hour} {half}".removesuffix("."),
        ]
    ends = (half, short, " ".join(short), *_parts_of_day(hour, half))
    readings = [f"{each} {heard}" for each in stems for heard in ends]
    if (hour == 12 and minute <= 30) or (hour == 11 and minute > 30):
        twelve = "noon" if (half == "p.m.") == (hour == 12) else "midnight"
        readings += [f"{each.removesuffix('twelve')}{twelve}" for each in _relative_times(hour, minute)]
    return both(f"{stem}{end}", written, figures, readings)


def military_time(hour: int, minute: int) -> Value:
    """Returns a time of day in four digits, from 01:00 on: `0630 hours`."""
    spoken = in_words.two_part(hour, minute) if minute else f"{cardinal(hour)} hundred"
    if hour < 10:
        spoken = f"oh {spoken}"
    readings = [f"{spoken.replace('oh', 'zero', 1)} hours"] if hour < 10 else []
    # `oh six oh five` are digits, and `fourteen thirty` is a year.
    if hour < 10 and (minute >= 10 or not minute):
        readings.append(spoken)
    figures = [f"{hour:02}{minute:02} hours", f"{hour:02}:{minute:02} hours", f"{hour:02}{minute:02} hrs"]
    return values.Value(f"{spoken} hours", f"{hour}:{minute:02}", tuple(figures), (f"{spoken} hours", *readings))


def time_in_zone(hour: int, minute: int, half: str, zone: str) -> Value:
    """Returns a time of day with its zone: `5:18 p.m. EST`, `14:05 UTC`; `half` as in `time_of_day`."""
    time = time_of_day(hour, minute, half)
    names = [zone, *([ZONE_NAMES[zone]] if zone in ZONE_NAMES else [])]
    forms = [[f"{form} {name}" for form in each for name in names] for each in (time.figures, time.words)]
    return values.Value(f"{time.spoken} {zone}", f"{time.written} {zone}", *map(tuple, forms))


def date_and_time(day: date, hour: int, minute: int, half: str = "") -> Value:
    """Returns a moment: `2024-05-06T14:05`, `May 6, 2024, 3:30 p.m.`; `half` as in `time_of_day`."""
    time, of_day = time_of_day(hour, minute, half), calendar_date(day)
    spoken, month = f"{of_day.spoken}, {time.spoken}", month_name[day.month]
    dates = [f"{name} {day.day}, {day.year}" for name in (month, month[:3])] + [f"{day.day} {month} {day.year}"]
    dates += [f"{day.month}/{day.day}/{day.year}", f"{day.month:02}/{day.day:02}/{day.year}"]
    figures = [f"{each}{at}{form}" for each in dates for at in (", ", " at ", " ") for form in time.figures[:4]]
    if not half:
        figures += [f"{day}{gap}{hour:02}:{minute:02}" for gap in ("T", "T", " ", ", ")] * 5
    # A time such as 14:05 is not written by itself, since its words are a year.
    written = f"{day} {time.written or f'{hour}:{minute:02}'}"
    return both(spoken, written, figures, [f"{of_day.spoken} at {time.spoken}"])


def dial(hour: int, minute: int) -> Iterator[Value]:
    """Yields the forms of a time on the dial in figures, `10 past 3`, without those that are a range: `5 to 10`."""
    distance, named_hour = (minute, hour) if minute <= 30 else (60 - minute, hour % 12 + 1)
    digits = {cardinal(distance): str(distance), cardinal(named_hour): str(named_hour)}
    for spoken in _relative_times(hour, minute):
        figures = " ".join(digits.get(word, word) for word in spoken.split(" "))
        if not re.fullmatch(r"\d+ (?:to|till|before) \d+", figures):
            yield spoken_only(spoken, [figures])


def interval_of_times(first: tuple[int, int, str], last: tuple[int, int, str]) -> Value:
    """Returns a range between two times of day, each an hour, a minute and `a.m.` or `p.m.`: `9am-5pm`."""
    start, end = time_of_day(*first), time_of_day(*last)
    shorts = []
    for gap, dots in product(("", " "), ("", ".")):
        typed = [f"{hour}{f':{minute:02}' if minute else ''}{gap}" for hour, minute, _ in (first, last)]
        halves = [half.replace(".", dots) for _, _, half in (first, last)]
        shorts.append([each + half for each, half in zip(typed, halves, strict=True)])
    figures = [dash.join(pair) for pair in ([start.written, end.written], *shorts) for dash in ("-", " - ", " to ")]
    if first[2] == last[2]:
        # `5-7pm`; its words, `five to seven p.m.`, are a time.
        times = [f"{hour}:{minute:02}" if minute else str(hour) for hour, minute, _ in (first, last)]
        ends = (last[2], f" {last[2]}", last[2].replace(".", ""), f" {last[2].replace('.', '')}")
        figures += [f"{dash.join(times)}{end}" for dash in ("-", " - ", " to ") for end in ends]
    spoken = f"{start.spoken} to {end.spoken}"
    return both(spoken, figures[0], figures[1:], [f"from {spoken}", spoken.replace(".", "")])


def interval_of_clock_times(first: tuple[int, int], last: tuple[int, int]) -> Value:
    """Returns a range between two times, each an hour and a minute, without `a.m.` and `p.m.`: `9:00-17:00`."""
    start, end = time_of_day(*first), time_of_day(*last)
    ends = [[f"{hour}:{minute:02}", f"{hour:02}:{minute:02}"] for hour, minute in (first, last)]
    figures = [dash.join(pair) for pair in zip(*ends, strict=True) for dash in ("-", " - ", " to ")]
    spoken = f"{start.spoken} to {end.spoken}"
    # `fourteen oh five` is a year.
    if not (start.words and end.words):
        return spoken_only(spoken, figures)
    return both(spoken, figures[0], figures[1:], [f"from {spoken}", spoken.replace("'", "")])


def _relative_times(hour: int, minute: int) -> list[str]:
    """Returns the forms of a time on the dial: `ten past three`, `a quarter to four`."""
    if not minute:
        return []
    distance = minute if minute <= 30 else 60 - minute
    words = ("past", "after") if minute <= 30 else ("to", "till", "before")
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
    starts = [f"{month} {spoken_day}", f"the {spoken_day} of {month}", f"{spoken_day} of {month}"]
    starts += [f"{month} {cardinal(day.day)}", f"{month} the {spoken_day}", f"{spoken_day} {month}"]
    spoken_years = [spoken_year, *([cardinal(day.year)] if day.year >= 2010 else [])]
    readings = [f"{start}{comma} {each}" for start in starts for comma in (",", "") for each in spoken_years]
    months = (month, *_short_months(day.month))
    days = (str(day.day), nth, *([f"{day.day:02}"] if day.day < 10 else []))
    figures = [f"{name} {number}{comma} {day.year}" for name in months for number in days for comma in (",", "")]
    figures += [f"{number} {name}{comma} {day.year}" for name in months for number in days for comma in ("", "", ",")]
    if weekday:
        name = day_name[day.weekday()]
        names = (name, name[:3])
        forms = [f"{each}{comma} {figure}" for figure in figures for each in names for comma in (",", "")]
        words = [f"{name}{comma} {reading}" for reading in readings for comma in (",", "")]
        return values.Value(f"{name}, {spoken}", day.isoformat(), tuple(forms), tuple(words))
    figures += [f"{the}{nth} of {month}{comma} {day.year}" for the in ("", "the ") for comma in ("", ",")]
    numeric = [f"{day.year}{dash}{day.month:02}{dash}{day.day:02}" for dash in "-/."]
    numeric += [f"{day.year}{dash}{day.month}{dash}{day.day}" for dash in "-/"]
    years = [str(day.year)]
    if day.year in SHORT_YEARS:
        short = f"{day.year % 100:02}"
        years.append(short)
        figures += [f"{name} {number}, '{short}" for name in months for number in days[:2]]
        figures += [f"{day.day} {month[:3]} {short}", f"{day.day} {month[:3]} '{short}"]
    for each in years:
        numeric += [f"{number}-{month[:3]}-{each}" for number in (day.day, f"{day.day:02}")]
        numeric += [f"{day.month}/{day.day}/{each}", f"{day.month:02}/{day.day:02}/{each}"]
        numeric += [f"{day.month:02}-{day.day:02}-{each}", f"{day.month}-{day.day}-{each}"]
        if day.day > 12:
            numeric += [f"{day.day}/{day.month}/{each}", f"{day.day}/{day.month:02}/{each}"]
            numeric.append(f"{day.day}-{day.month:02}-{each}")
    numeric += [f"{day.day}.{day.month}.{day.year}", f"{day.day:02}.{day.month:02}.{day.year}"]
    # Twice, since there are more forms with names.
    return both(spoken, day.isoformat(), [*figures, *numeric, *numeric], readings)


def impossible_date(numbers: Sequence[int], dash: str) -> Value:
    """Returns three numbers that look like a date but are none: `13/26/1991`; `dash` is `/` or `-`."""
    words = [year(number) if number >= 1000 else cardinal(number) for number in numbers]
    written, padded = (dash.join(format(number, form) for number in numbers) for form in ("", "02"))
    return both(f" {'slash' if dash == '/' else 'dash'} ".join(words), written, [padded])


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
    figures += [f"{nth} of {name}", f"the {nth} of {name}", f"{nth} {name}", f"{name} the {nth}", f"{name} {day:02}"]
    figures += [
        form for short in _short_months(month) for form in (f"{short} {nth}", f"{day} {short}", f"{nth} {short}")
    ]
    readings += [f"{ordinal(day)} of {name}", f"{name} {cardinal(day)}", f"{name} the {ordinal(day)}"]
    return both(spoken, written, figures, [*readings, f"{ordinal(day)} {name}"])


def interval_of_days(month: int, first: int, last: int) -> Value:
    """Returns a range between two days of a month: `May 5-7`."""
    days, nths = f"{first}-{last}", f"{first}{ordinal_ending(first)}-{last}{ordinal_ending(last)}"
    name, spoken_days = month_name[month], f"{ordinal(first)} to {ordinal(last)}"
    figures = [f"{each} {range_}" for each in (name, *_short_months(month)) for range_ in (days, nths)]
    figures += [f"{range_} {each}" for each in (name, *_short_months(month)) for range_ in (days, nths)]
    figures += [each.replace("-", dash) for each in figures for dash in (" - ", " to ")]
    readings = [f"{name} {cardinal(first)} to {cardinal(last)}", f"{spoken_days} of {name}"]
    readings += [f"the {ordinal(first)} to the {ordinal(last)} of {name}"]
    return both(f"{name} {spoken_days}", f"{name} {days}", figures, readings)


def month_of_year(month: int, number: int) -> Value:
    name, spoken_year = month_name[month], year(number)
    figures = [f"{name}, {number}", f"{name} of {number}", f"{month}/{number}", f"{month:02}/{number}"]
    figures += [f"{number}-{month:02}", f"{number}/{month:02}", f"{name[:3]}-{number}"]
    figures += [f"{short} {number}" for short in _short_months(month)]
    if number in SHORT_YEARS:
        figures += [f"{each} '{number % 100:02}" for each in (name, *_short_months(month))]
    readings = [f"{name}, {spoken_year}", f"{name} of {spoken_year}"]
    if number >= 2010:
        readings.append(f"{name} {cardinal(number)}")
    return both(f"{name} {spoken_year}", f"{name} {number}", figures, readings)


def bare_year(number: int) -> Value:
    """Returns a year. Its bare figures are a number; its bare words are a year if they differ from the number's."""
    if year(number) == cardinal(number):
        return in_year(number)
    return values.Value(year(number), str(number), words=(year(number),))


def in_year(number: int, before: str = "in") -> Value:
    """Returns a year after `in`, or after another word."""
    readings = [f"{before} {cardinal(number)}"] if number >= 2010 else []
    return both(f"{before} {year(number)}", f"{before} {number}", words=readings)


def year_of_era(number: int, era: str) -> Value:
    """Returns a year with its era: `AD` or `BC`, `CE` or `BCE`."""
    dotted = ".".join(era) + "."
    figures = [f"{number} {dotted}", *([f"AD {number}", f"A.D. {number}"] if era == "AD" else [])]
    readings = [f"{year(number)} {dotted}"]
    if 100 < number < 1000 and number % 100:
        readings.append(f"{in_words.two_part(number // 100, number % 100)} {era}")
    return both(f"{year(number)} {era}", f"{number} {era}", figures, readings)


def decade(number: int, the: str = "") -> Value:
    """Returns a decade; below 100, without its century, from the twenties on. The first one has its century's name.

    `the` is `the ` or empty.
    """
    century, tens = divmod(number, 100)
    plural = "tens" if tens == 10 else f"{in_words.TENS[tens // 10].removesuffix('y')}ies"
    spoken = f"{year(number)}s" if not tens else f"{cardinal(century)} {plural}" if century else plural
    figures = [f"{number}'s"] if century else [f"{number}'s", f"'{number}s", f"'{number}'s"]
    readings = [f"{cardinal(century)}-{plural}"] if century and tens else []
    return both(
        f"{the}{spoken}",
        f"{the}{number}s",
        [f"{the}{figure}" for figure in figures],
        [f"{the}{reading}" for reading in readings],
    )


def nth_century(number: int, the: str = "", era: str = "") -> Value:
    """Returns a century by its number, `the 21st century`, `5th century BC`; `the` is `the ` or empty."""
    end = f"century {era}".rstrip()
    return both(f"{the}{ordinal(number)} {end}", f"{the}{number}{ordinal_ending(number)} {end}")


def duration(*counts: tuple[int, str]) -> Value:
    """Returns a time in two or three units: `duration((1, "hour"), (30, "minute"))`."""
    units = [unit for _, unit in counts]
    nouns = [unit if count == 1 else f"{unit}s" for count, unit in counts]
    written = _listed([f"{count} {noun}" for (count, _), noun in zip(counts, nouns, strict=True)])
    spoken = _listed([f"{cardinal(count)} {noun}" for (count, _), noun in zip(counts, nouns, strict=True)])
    figures = []
    for shorts in product(*(SHORT_UNITS[unit] for unit in units)):
        parts = [(count, short) for (count, _), short in zip(counts, shorts, strict=True)]
        figures += [" ".join(f"{count}{gap}{short}" for count, short in parts) for gap in ("", " ")]
    figures += ["".join(f"{count}{SHORT_UNITS[unit][0]}" for count, unit in counts), *written[1:] * len(units)]
    if units == ["hour", "minute"]:
        hours, minutes = (count for count, _ in counts)
        figures += [f"{hours}h{minutes:02}", f"{hours}h{minutes:02}", f"{hours}h{minutes:02}m"] * 2
    if units == ["hour", "minute", "second"]:
        hours, minutes, seconds = (count for count, _ in counts)
        figures += [f"{hours}:{minutes:02}:{seconds:02}"] * 8
    readings = spoken[1:]
    if counts[0][0] == 1:
        readings += [each.replace("one", in_words.article(units[0]), 1) for each in spoken]
    return both(spoken[0], written[0], figures, readings)


def _listed(parts: list[str]) -> list[str]:
    """Returns the ways to list the parts of one amount; blanks alone come first."""
    *first, last = parts
    ways = [" ".join(parts), ", ".join(parts), f"{' '.join(first)} and {last}"]
    return [*ways, f"{', '.join(first)} and {last}", f"{', '.join(first)}, and {last}"] if len(first) > 1 else ways
