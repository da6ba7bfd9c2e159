"""The colors of a report: for pictures, by name, so that a page may give each another value in the dark.

Series are told apart by people who see colors differently too: hues after Okabe and Ito (2008), darkened to a contrast
of 3 : 1 and more with paper; and each series has a line style and a letter of its own.
"""

import re

INK, FAINT, RULE, HEAT, PAPER = "#1c2530", "#5d6b7a", "#d9dfe6", "#0b6bb0", "#ffffff"

SERIES = ("#0072b2", "#c94f00", "#00795c", "#a8458a", "#7a6200", "#3f4a57")
LINE_STYLES: tuple[str | tuple[int, tuple[float, ...]], ...] = (
    "-",
    (0, (5, 1.6)),
    (0, (1.2, 1.2)),
    (0, (6, 1.5, 1.2, 1.5)),
)
MARKERS = ("o", "s", "^", "D", "v", "P")

DARK = {
    INK: "#e6ebf0",
    FAINT: "#9aa7b4",
    RULE: "#333d48",
    HEAT: "#58b4f0",
    PAPER: "#12171d",
    **dict(zip(SERIES, ("#56b4e9", "#ff9147", "#2fc6a0", "#e79bcb", "#e0c04a", "#c5ced8"), strict=True)),
}
"""What each color is in the dark."""

NAMES = {
    INK: "ink",
    FAINT: "faint",
    RULE: "rule",
    HEAT: "heat",
    PAPER: "paper",
    **{color: f"series-{number}" for number, color in enumerate(SERIES, 1)},
}
_COLOR = re.compile("|".join(NAMES), re.IGNORECASE)
_STYLE = re.compile(r'style="[^"]*"')


def with_variables(svg: str) -> str:
    """The picture with every color of ours, where it stands in a style, as the page's."""
    return _STYLE.sub(lambda style: _COLOR.sub(_variable, style[0]), svg)


def variables(*, dark: bool) -> str:
    """The declarations of the colors, for a style sheet."""
    return "".join(f"--{name}:{DARK[color] if dark else color};" for color, name in NAMES.items())


def series_color(number: int) -> str:
    return SERIES[number % len(SERIES)]


def series_name(number: int) -> str:
    """The variable of a series' color."""
    return NAMES[series_color(number)]


def _variable(color: re.Match[str]) -> str:
    return f"var(--{NAMES[color[0].lower()]},{color[0]})"
