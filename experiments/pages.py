"""What commands write into docs/experiments: tables between the marks of a page, and pictures beside it."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.axes import Axes

from attendant.runtime.files import write_text
from attendant.training.report.pictures import line_style, marker, on_paper, series_color, styled_figure, svg_of

PAGES: Final = Path(__file__).parents[1] / "docs" / "experiments"


def write_table(page: str, name: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table, and puts it in the place of the one between `<!-- name -->` and `<!-- end -->` of a page."""
    lines = [f"| {' | '.join(cells)} |" for cells in (headings, ["---"] * len(headings), *rows)]
    print("\n".join(lines), flush=True)
    path = PAGES / f"{page}.md"
    pattern = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
    text, count = pattern.subn(lambda marks: f"{marks[1]}{chr(10).join(lines)}\n{marks[2]}", path.read_text("utf-8"))
    assert count == 1, f"{path} has {count} places for {name}"
    write_text(path, text)


def spread(values: Sequence[float], digits: int = 1, interval: tuple[float, float] | None = None) -> str:
    """The mean, and the lowest and the highest value; of a single value its interval, where it has one."""
    if not values:
        return ""
    mean = f"{np.mean(values):.{digits}f}"
    bounds = (min(values), max(values)) if len(values) > 1 else interval
    return f"{mean} ({bounds[0]:.{digits}f} to {bounds[1]:.{digits}f})" if bounds else mean


def draw_runs(
    axis: Axes,
    number: int,
    label: str,
    places: Sequence[float],
    runs: Sequence[Sequence[float]],
    band: Sequence[Sequence[float]] | None = None,
) -> None:
    """A line of the runs' means, and a band.

    Args:
        runs: each has a value for each place.
        band: its lower and upper edge at each place; None: from the lowest run to the highest.
    """
    color, means = series_color(number), np.mean(runs, 0)
    low, high = band or (np.min(runs, 0), np.max(runs, 0))
    axis.fill_between(places, low, high, color=color, alpha=0.16, linewidth=0)
    axis.plot(places, means, color=color, linestyle=line_style(number), marker=marker(number), label=label)


@contextmanager
def picture(name: str, width: float, height: float, *, columns: int = 1) -> Iterator[list[Axes]]:
    """Axes beside one another, written as docs/experiments/images/NAME.svg when the context ends.

    Args:
        width, height: in inches, of all of them together.
    """
    with styled_figure((width, height)) as figure:
        yield [figure.add_subplot(1, columns, place + 1) for place in range(columns)]
        drawn = svg_of(figure)
    write_text(PAGES / "images" / f"{name}.svg", on_paper(drawn))
