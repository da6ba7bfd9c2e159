"""The colors of a report: for pictures, by name, so that a page may give each another value in the dark.

Series are told apart by people who see colors differently too: hues after Okabe and Ito (2008), darkened to a contrast
of 3 : 1 and more with paper; and each series has a line style and a letter of its own.
"""

import re

PALETTE = {
    "ink": ("#1c2530", "#e6ebf0"),
    "faint": ("#5d6b7a", "#9aa7b4"),
    "rule": ("#d9dfe6", "#333d48"),
    "heat": ("#0b6bb0", "#58b4f0"),
    "paper": ("#ffffff", "#12171d"),
    "series-1": ("#0072b2", "#56b4e9"),
    "series-2": ("#c94f00", "#ff9147"),
    "series-3": ("#00795c", "#2fc6a0"),
    "series-4": ("#a8458a", "#e79bcb"),
    "series-5": ("#7a6200", "#e0c04a"),
    "series-6": ("#3f4a57", "#c5ced8"),
}
"""Each color by its name: as it is drawn, and in the dark."""

NAMES = {color: name for name, (color, _) in PALETTE.items()}
INK, FAINT, RULE, HEAT, PAPER, *SERIES = NAMES
LineStyle = str | tuple[int, tuple[float, ...]]
LINE_STYLES: tuple[LineStyle, ...] = (
    "-",
    (0, (5, 1.6)),
    (0, (1.2, 1.2)),
    (0, (6, 1.5, 1.2, 1.5)),
)
MARKERS = ("o", "s", "^", "D", "v", "P")


def on_page(svg: str, prefix: str) -> str:
    """The picture with every color of ours, where it stands in a style, as the page's, and every id after `prefix`."""
    colors = re.compile("|".join(NAMES), re.IGNORECASE)

    def variable(color: re.Match[str]) -> str:
        return f"var(--{NAMES[color[0].lower()]},{color[0]})"

    with_ids = re.sub(r'(<[^<>]*?\s)id="', rf'\1id="{prefix}', svg)
    with_links = re.sub(r'(url\(#|href="#)', rf"\1{prefix}", with_ids)
    return re.sub(r'style="[^"]*"', lambda style: colors.sub(variable, style[0]), with_links)


def on_paper(svg: str) -> str:
    """The drawing on a white ground: a Markdown viewer may have a page of any color."""
    opened = svg.index(">") + 1
    return f'{svg[:opened]}<rect width="100%" height="100%" style="fill:{PAPER}"/>{svg[opened:]}\n'


def variables(*, dark: bool) -> str:
    """The declarations of the colors, for a style sheet."""
    return "".join(f"--{name}:{shades[dark]};" for name, shades in PALETTE.items())


def series_color(number: int) -> str:
    return SERIES[number % len(SERIES)]


def line_style(number: int) -> LineStyle:
    """Of a series, as matplotlib has it."""
    return LINE_STYLES[number % len(LINE_STYLES)]


def marker(number: int) -> str:
    """Of a series, as matplotlib has it."""
    return MARKERS[number % len(MARKERS)]


def series_name(number: int) -> str:
    """The variable of a series' color."""
    return NAMES[series_color(number)]
