"""Writes tables between the marks of a page of docs/experiments, and its pictures."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.axes import Axes

from attendant.runtime.files import write_text
from attendant.training.report.pictures import line_style, marker, on_paper, series_color, styled_figure, svg_of

PAGES: Final = Path(__file__).resolve().parents[2] / "docs" / "experiments"


def write_table(page: str, name: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table, and replaces the table between `<!-- name -->` and `<!-- end -->` of a page."""
    lines = [f"| {' | '.join(cells)} |" for cells in (headings, ["---"] * len(headings), *rows)]
    print("\n".join(lines), flush=True)
    path = PAGES / f"{page}.md"
    pattern = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
    text, count = pattern.subn(lambda marks: f"{marks[1]}{chr(10).join(lines)}\n{marks[2]}", path.read_text("utf-8"))
    assert count == 1, f"{path} has {count} places for {name}"
    write_text(path, text)


def spread(values: Sequence[float], digits: int = 1, interval: tuple[float, float] | None = None) -> str:
    """Returns the mean with the lowest and highest value; for a single value its interval, if it has one."""
    if not values:
        return ""
    mean = f"{np.mean(values):.{digits}f}"
    bounds = (min(values), max(values)) if len(values) > 1 else interval
    return f"{mean} ({bounds[0]:.{digits}f} to {bounds[1]:.{digits}f})" if bounds else mean


def draw_runs(
    axis: Axes,
    number: int,
    label: str,
    positions: Sequence[float],
    runs: Sequence[Sequence[float]],
    band: Sequence[Sequence[float]] | None = None,
) -> None:
    """Draws a line through the runs' means, and a band.

    Args:
        runs: one value per position each.
        band: the band's lower and upper edge. If None, the lowest and the highest run.
    """
    color = series_color(number)
    low, high = band or (np.min(runs, 0), np.max(runs, 0))
    axis.fill_between(positions, low, high, color=color, alpha=0.16, linewidth=0)
    means, style = np.mean(runs, 0), line_style(number)
    axis.plot(positions, means, color=color, linestyle=style, marker=marker(number), label=label)


@contextmanager
def picture(name: str, width: float, height: float, *, columns: int = 1) -> Iterator[list[Axes]]:
    """Yields axes in a row, and writes docs/experiments/images/NAME.svg at the end.

    Args:
        width, height: size of the whole picture in inches.
    """
    with styled_figure((width, height)) as figure:
        yield [figure.add_subplot(1, columns, column + 1) for column in range(columns)]
        svg = svg_of(figure)
    write_text(PAGES / "images" / f"{name}.svg", on_paper(svg))
