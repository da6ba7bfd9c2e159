"""Stores results in a JSON file per suite, and writes its Markdown page and pictures, and the speed goals (yardsticks).

A new result of a part replaces the former one.
"""

import datetime
import os
import platform
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from pydantic import TypeAdapter

from attendant.runtime.process import processor
from benchmarks import DATA

Cell = str | float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Horizontal bars in sections: the lengths of each section in every bar, by its name."""

    file: str
    title: str
    x_label: str
    bars: list[str]
    sections: dict[str, list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The results of one part of a suite.

    Attributes:
        rows: rows of the table; each begins with its name.
        figures: by name, for yardsticks and for comparisons of runs.
        note: remarks about this run, in Markdown.
        problems: failed checks. The command fails with these lines after all parts.
    """

    columns: list[str]
    rows: list[list[Cell]] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    pictures: list[Picture] = field(default_factory=list)
    note: str = ""
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine of a measurement.

    Attributes:
        cpu: the model, and its instruction sets that speed depends on.
        num_cores: cores that this process may use.
        load: system load of the minute before; near 0 on a quiet machine.
        date: UTC.
    """

    cpu: str
    num_cores: int
    load: float
    date: str
    python: str


def this_machine() -> Machine:
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    num_cores = len(os.sched_getaffinity(0))
    return Machine(processor(), num_cores, os.getloadavg()[0], today, platform.python_version())


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A part with its title and description (`about`, Markdown), and the command and the machine that measured it."""

    title: str
    about: str
    command: str
    machine: Machine
    part: Part


FORMAT = TypeAdapter(dict[str, Measured])


def read_results(path: Path) -> dict[str, Measured]:
    """Returns the parts of a file; none if it does not exist yet."""
    return FORMAT.validate_json(path.read_bytes()) if path.exists() else {}


def add_result(path: Path, name: str, measured: Measured) -> dict[str, Measured]:
    """Writes a part into the file; returns all its parts."""
    parts = read_results(path) | {name: measured}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(FORMAT.dump_json(parts, indent=1) + b"\n")
    return parts


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Returns a table whose first column is aligned left, and the others right."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *([shown(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def shown(cell: Cell) -> str:
    """Returns a number with three significant digits, or its whole part if that has more."""
    if cell is None or isinstance(cell, str):
        return cell or ""
    return f"{cell:,.0f}" if cell == 0 or abs(cell) >= 100 else f"{cell:#.3g}".rstrip(".")


def write_page(path: Path, title: str, about: str, parts: Mapping[str, Measured]) -> None:
    """Writes the page and its pictures, with a section for each part."""
    paragraphs = [f"# {title}", about]
    for measured in parts.values():
        part, machine = measured.part, measured.machine
        facts = (
            f"`{measured.command}`, {machine.date}: {machine.cpu}, {machine.num_cores} cores, load {machine.load:.1f} "
            f"when it began; Python {machine.python}."
        )
        table = markdown_table(part.columns, part.rows)
        paragraphs += [f"## {measured.title}", measured.about, part.note, facts, table]
        for picture in part.pictures:
            draw(picture, path.parent / picture.file)
            paragraphs.append(f"![{picture.title}]({picture.file})")
    path.write_text("\n\n".join(filter(None, paragraphs)) + "\n", encoding="utf-8")


def draw(picture: Picture, path: Path) -> None:
    """Writes the SVG file: the same bytes for the same picture."""
    with rc_context({"svg.hashsalt": picture.file, "svg.fonttype": "none"}):
        figure = Figure(figsize=(7.5, 4.2), layout="constrained")
        axes, lefts = figure.subplots(), [0.0] * len(picture.bars)
        for name, lengths in picture.sections.items():
            axes.barh(range(len(lefts)), lengths, left=lefts, label=name)
            lefts = [left + length for left, length in zip(lefts, lengths, strict=True)]
        axes.set_yticks(range(len(lefts)), picture.bars)
        axes.invert_yaxis()
        axes.legend(frameon=False, ncols=2, loc="upper center", bbox_to_anchor=(0.4, -0.15))
        axes.set(title=picture.title, xlabel=picture.x_label)
        figure.savefig(path, format="svg", metadata={"Date": None})


YARDSTICKS = tomllib.loads((DATA / "yardsticks.toml").read_text(encoding="utf-8"))["yardstick"]
"""The speed goals; the file explains the fields."""


def yardstick_rows(output: Path) -> list[list[Cell]]:
    """Returns a row per yardstick, from the results in the folder."""
    results = {suite: read_results(output / f"{suite}.json") for suite in ("serving", "peers")}
    return [_yardstick_row(stick, results) for stick in YARDSTICKS]


def _yardstick_row(stick: Mapping[str, Any], results: Mapping[str, Mapping[str, Measured]]) -> list[Cell]:
    def figure(source: Mapping[str, Any], name: str) -> float | None:
        measured = results[source.get("suite", "serving")].get(source["part"])
        return measured.part.figures.get(source[name]) if measured else None

    def text(value: float) -> str:
        return f"{value:.2f}{' x' if is_ratio else ''}" if unit else f"{100 * value:.1f} %"

    unit, is_ratio, bound = stick["unit"], "theirs" in stick, stick.get("bound", {})
    kind = "at_least" if "at_least" in stick else "at_most"
    limit = f"{stick[kind]:g} {'x' if is_ratio else unit}" if unit else f"{100 * stick[kind]:g} %"
    goal = f"{kind.replace('_', ' ')} {limit}"
    ours, theirs = figure(stick, "ours"), figure(stick, "theirs") if is_ratio else None
    if ours is None or (is_ratio and theirs is None):
        return [stick["what"], ours, theirs, "not measured", goal, None, None]
    divisor = 1.0 if theirs is None else theirs
    holds = ours / divisor >= stick[kind] if kind == "at_least" else ours / divisor <= stick[kind]
    best = figure(bound, "figure") if bound else None
    if "ours" in bound:
        # Measured in another run: machines differ in speed, so our figure improves by the same factor.
        ours_there = figure(bound, "ours")
        best = ours * best / ours_there if best is not None and ours_there is not None else None
    cells = [None if value is None else f"{value:,.4g} {unit}".strip() for value in (ours, theirs)]
    bound_text = None if best is None else f"{text(best / divisor)}: {bound['by']}"
    return [stick["what"], *cells, text(ours / divisor), goal, "yes" if holds else "no", bound_text]


def write_yardsticks(output: Path) -> str:
    """Writes yardsticks.md; returns its text."""
    columns = ("what", "ours", "theirs", "measured", "goal", "holds", "bound")
    text = (
        "# Yardsticks\n\n`make bench` and `make bench-peers` write this page from serving.json and peers.json, which "
        "have the command, date and machine of each part. Bound: the best possible value on that machine, if Attendant "
        f"cost no more than the work named there.\n\n{markdown_table(columns, yardstick_rows(output))}\n"
    )
    (output / "yardsticks.md").write_text(text, encoding="utf-8")
    return text
