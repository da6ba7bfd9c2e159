"""What was measured, part by part, in a JSON file: a part that is run again takes the place of its former result."""

from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from benchmarks.harness.machine import Machine

Cell = str | float | None
"""Text, a number, or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Lines over one axis.

    Attributes:
        series: (x, y) of each line's points, by its name.
    """

    file: str
    title: str
    x_label: str
    y_label: str
    series: dict[str, list[tuple[float, float]]]
    logarithmic: bool = False


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
    rows: list[list[Cell]]
    figures: dict[str, float] = field(default_factory=dict)
    pictures: list[Picture] = field(default_factory=list)
    note: str = ""
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A part with what it is, where, when and by which command.

    Attributes:
        about: what the table shows and how it was measured; Markdown.
    """

    title: str
    about: str
    command: str
    machine: Machine
    part: Part


FORMAT = TypeAdapter(dict[str, Measured])


class Results:
    """The parts of one file, in the order in which they were first run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.parts = FORMAT.validate_json(path.read_bytes()) if path.exists() else {}

    def add(self, name: str, measured: Measured) -> None:
        """Keeps a part and writes the file."""
        self.parts[name] = measured
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_bytes(FORMAT.dump_json(self.parts, indent=1) + b"\n")
