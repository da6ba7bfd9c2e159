"""What was measured, part by part, in a JSON file: a part that is run again takes the place of its former result."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.training.machine import Machine

Cell = str | float | None
"""Text, a number, or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A line of a part's picture."""

    name: str
    xs: list[float]
    ys: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture of a part: lines over one axis."""

    file: str
    title: str
    x_label: str
    y_label: str
    series: list[Series]
    logarithmic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A measured part.

    Attributes:
        about: what the table shows and how it was measured; Markdown.
        figures: by name, for the yardsticks (yardsticks.py) and for whoever compares runs.
    """

    title: str
    about: str
    columns: list[str]
    rows: list[list[Cell]]
    figures: dict[str, float] = field(default_factory=dict)
    pictures: list[Picture] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A part with where, when and by which command."""

    part: Part
    command: str
    machine: Machine


class Results:
    """The parts of one file, in the order in which they were first run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.parts: dict[str, Measured] = {}
        if path.exists():
            found = json.loads(path.read_text(encoding="utf-8"))
            self.parts = {name: _measured(value) for name, value in found["parts"].items()}

    def add(self, name: str, measured: Measured) -> None:
        """Keeps a part and writes the file."""
        self.parts[name] = measured
        self._path.parent.mkdir(parents=True, exist_ok=True)
        content = {"parts": {name: asdict(value) for name, value in self.parts.items()}}
        self._path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _measured(value: dict[str, Any]) -> Measured:
    part = value["part"]
    pictures = [
        Picture(**picture | {"series": [Series(**series) for series in picture["series"]]})
        for picture in part["pictures"]
    ]
    return Measured(
        part=Part(**part | {"pictures": pictures}), command=value["command"], machine=Machine(**value["machine"])
    )
