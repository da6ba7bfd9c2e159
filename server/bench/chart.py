"""Line charts as SVG, without a library: a server's host has none for it."""

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 460, 340
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 40, 52
COLORS = ("#1f77b4", "#d95f02", "#1b9e77", "#7570b3", "#e7298a", "#66a61e", "#a6761d", "#666666")
NUM_TICKS = 5

Points = Sequence[tuple[float, float]]


def side_by_side(charts: Sequence[str]) -> str:
    """One picture of several charts."""
    placed = (f'<g transform="translate({number * WIDTH} 0)">{chart}</g>' for number, chart in enumerate(charts))
    width = WIDTH * len(charts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" width="{width}" height="{HEIGHT}" '
        f'font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" fill="white"/>\n'
        + "\n".join(placed)
        + "\n</svg>\n"
    )


def chart(title: str, x_label: str, y_label: str, series: Mapping[str, Points]) -> str:
    """A line for each series, over axes that begin at 0."""
    points = [point for line in series.values() for point in line]
    x_ticks, y_ticks = (_ticks(max((point[axis] for point in points), default=1.0)) for axis in (0, 1))

    def x_of(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * value / x_ticks[-1]

    def y_of(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / y_ticks[-1]

    parts = [_text(WIDTH / 2, 18, title, "middle", "bold")]
    for tick in y_ticks:
        parts.append(f'<path d="M{LEFT} {y_of(tick):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(_text(LEFT - 6, y_of(tick) + 4, f"{tick:,g}", "end"))
    parts += [_text(x_of(tick), HEIGHT - BOTTOM + 16, f"{tick:,g}", "middle") for tick in x_ticks]
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, x_label, "middle"))
    parts.append(f'<g transform="translate(14 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)">')
    parts.append(_text(0, 0, y_label, "middle") + "</g>")
    for number, (name, line) in enumerate(series.items()):
        color = COLORS[number % len(COLORS)]
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="3" fill="{color}"/>' for x, y in line]
        height = TOP + 14 * number
        parts.append(f'<path d="M{LEFT + 8} {height - 4}h18" stroke="{color}" stroke-width="2"/>')
        parts.append(_text(LEFT + 32, height, name, "start"))
    return "\n".join(parts)


def _text(x: float, y: float, text: str, anchor: str, weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}">{escape(text)}</text>'


def _ticks(most: float) -> list[float]:
    """Round numbers from 0 to the first that is not below `most`."""
    rough = max(most, 1e-9) / NUM_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))
    return [step * number for number in range(max(1, math.ceil(most / step - 1e-9)) + 1)]
