"""Stores results in a JSON file per suite, and writes its Markdown page and pictures.

A new result of a part replaces the former one.
"""

import datetime
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from pydantic import TypeAdapter, ValidationError

from attendant.runtime.errors import UserError
from attendant.runtime.process import processor

Cell = str | float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The results of one part of a suite.

    Attributes:
        rows: rows of the table; each begins with its name.
        picture: file of a picture of the table, whose last row is the sum of the others. If empty, there is none.
        note: remarks about this run, in Markdown.
    """

    columns: list[str]
    rows: list[list[Cell]] = field(default_factory=list)
    picture: str = ""
    note: str = ""


def this_machine() -> str:
    """Returns the date (UTC), the processor with its instruction sets that speed depends on, and the system's load.

    On a quiet machine the load is near 0.
    """
    today, num_cores = datetime.datetime.now(datetime.UTC).date().isoformat(), len(os.sched_getaffinity(0))
    cores = f"{processor()}, {num_cores} cores, load {os.getloadavg()[0]:.1f} when it began"
    return f"{today}: {cores}; Python {platform.python_version()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A part with its title and description (`about`, Markdown), and the command and the machine that measured it."""

    title: str
    about: str
    command: str
    machine: str
    part: Part


FORMAT = TypeAdapter(dict[str, Measured])


def read_results(path: Path) -> dict[str, Measured]:
    """Returns the parts of a file; none if it does not exist yet. Raises UserError if another version wrote it."""
    try:
        return FORMAT.validate_json(path.read_bytes()) if path.exists() else {}
    except ValidationError:
        raise UserError(f"{path} is not of this version: move it away, or write to another --output") from None


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
        part, facts = measured.part, f"`{measured.command}`, {measured.machine}."
        table = markdown_table(part.columns, part.rows)
        paragraphs += [f"## {measured.title}", measured.about, part.note, facts, table]
        if part.picture:
            draw(part, path.parent / part.picture)
            paragraphs.append(f"![{measured.title}]({part.picture})")
    path.write_text("\n\n".join(filter(None, paragraphs)) + "\n", encoding="utf-8")


def draw(part: Part, path: Path) -> None:
    """Draws each column as a bar: the rows' shares of the last row, their sum. The same bytes for the same table."""
    *sections, (_, *totals) = part.rows
    numbers = np.array([row[1:] for row in part.rows], np.float64)
    shares = 100 * numbers[:-1] / numbers[-1]
    bars = [f"{name}: {shown(total)}" for name, total in zip(part.columns[1:], totals, strict=True)]
    with rc_context({"svg.hashsalt": path.name, "svg.fonttype": "none"}):
        figure = Figure(figsize=(7.5, 4.2), layout="constrained")
        axes = figure.subplots()
        for (name, *_), lengths, ends in zip(sections, shares, np.cumsum(shares, 0), strict=True):
            axes.barh(bars, lengths, left=ends - lengths, label=name)
        axes.invert_yaxis()
        axes.legend(frameon=False, ncols=2, loc="upper center", bbox_to_anchor=(0.4, -0.15))
        axes.set_xlabel(f"% of {part.columns[0]}")
        figure.savefig(path, format="svg", metadata={"Date": None})
