"""What was measured, and where, part by part in a JSON file, and the Markdown page and pictures (SVG) that show it.

What is measured again takes the place of what was.
"""

import datetime
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import TypeAdapter

from attendant.runtime.process import processor

SIZE_INCHES = (7.5, 4.2)
Cell = str | float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Lines over one axis: (x, y) of each line's points, by its name.

    Attributes:
        bars: the names of bars; then each series has one part of every bar, and x is the bar's number.
    """

    file: str
    title: str
    x_label: str
    y_label: str
    series: dict[str, list[tuple[float, float]]]
    logarithmic: bool = False
    bars: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a part of a benchmark has found.

    Attributes:
        rows: of the table; each begins with its name.
        figures: by name, for the yardsticks (yardsticks.py) and for whoever compares runs.
        note: what is to be known of this very run; Markdown.
        problems: what must not be: the command fails with these lines after all parts.
    """

    columns: list[str]
    rows: list[list[Cell]] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    pictures: list[Picture] = field(default_factory=list)
    note: str = ""
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine as it is now.

    Attributes:
        cpu: the model, and those of its instructions that speed depends on.
        num_cores: that this process may use.
        load: processes that wanted a core in the minute before; a quiet machine's is near 0.
        date: of the measurement, in UTC.
    """

    cpu: str
    num_cores: int
    load: float
    date: str
    python: str


def this_machine() -> Machine:
    return Machine(
        cpu=processor(),
        num_cores=len(os.sched_getaffinity(0)),
        load=os.getloadavg()[0],
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        python=platform.python_version(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A part with what it is, where, when and by which command; `about` is Markdown."""

    title: str
    about: str
    command: str
    machine: Machine
    part: Part


FORMAT = TypeAdapter(dict[str, Measured])


def read_results(path: Path) -> dict[str, Measured]:
    """The parts of a file, in the order in which they were first run; none where there is no file yet."""
    return FORMAT.validate_json(path.read_bytes()) if path.exists() else {}


def add_result(path: Path, name: str, measured: Measured) -> dict[str, Measured]:
    """Writes a part into the file; all parts that are in it then."""
    parts = read_results(path) | {name: measured}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(FORMAT.dump_json(parts, indent=1) + b"\n")
    return parts


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """The first column is text and stands left, the others right."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *([shown(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def shown(cell: Cell) -> str:
    """A number with three significant digits, or all of its whole part."""
    if cell is None or isinstance(cell, str):
        return cell or ""
    if cell == 0 or abs(cell) >= 100:
        return f"{cell:,.0f}"
    return f"{cell:#.3g}".rstrip(".")


def write_page(path: Path, title: str, about: str, parts: Mapping[str, Measured]) -> None:
    """One section per part: what was measured, where, by which command, the table and the pictures, which are drawn."""
    paragraphs = [f"# {title}", about]
    for one in parts.values():
        part, machine = one.part, one.machine
        facts = (
            f"`{one.command}`, {machine.date}: {machine.cpu}, {machine.num_cores} cores, load {machine.load:.1f} "
            f"when it began; Python {machine.python}."
        )
        paragraphs += [f"## {one.title}", one.about, part.note, facts, markdown_table(part.columns, part.rows)]
        for picture in part.pictures:
            draw(picture, path.parent / picture.file)
            paragraphs.append(f"![{picture.title}]({picture.file})")
    path.write_text("\n\n".join(filter(None, paragraphs)) + "\n", encoding="utf-8")


def draw(picture: Picture, path: Path) -> None:
    """Writes the file; the same bytes for the same picture."""
    with rc_context({"svg.hashsalt": picture.file, "svg.fonttype": "none"}):
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        axes = figure.subplots()
        if picture.bars:
            _draw_bars(axes, picture)
        else:
            _draw_lines(axes, picture)
        axes.set(title=picture.title, xlabel=picture.x_label, ylabel=picture.y_label)
        figure.savefig(path, format="svg", metadata={"Date": None})


def _draw_lines(axes: Axes, picture: Picture) -> None:
    for name, points in picture.series.items():
        axes.plot(*zip(*points, strict=True), marker="o", markersize=4, label=name)
    if picture.logarithmic:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)


def _draw_bars(axes: Axes, picture: Picture) -> None:
    """From top to bottom, in the order given; the legend stands below."""
    ends = [0.0] * len(picture.bars)
    for name, points in picture.series.items():
        numbers, lengths = [round(x) for x, _ in points], [y for _, y in points]
        axes.barh(numbers, lengths, left=[ends[number] for number in numbers], label=name)
        for number, length in zip(numbers, lengths, strict=True):
            ends[number] += length
    axes.set_yticks(range(len(picture.bars)), picture.bars)
    axes.invert_yaxis()
    axes.legend(frameon=False, ncols=2, loc="upper center", bbox_to_anchor=(0.4, -0.15))
