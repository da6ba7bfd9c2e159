"""What was measured, and where, part by part in a JSON file: what is measured again takes the place of what was."""

import datetime
import os
import platform
import re
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

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


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine as it is now.

    Attributes:
        cpu: the model, and those of its instructions that training can use.
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
        cpu=_cpu(),
        num_cores=len(os.sched_getaffinity(0)),
        load=os.getloadavg()[0],
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        python=platform.python_version(),
    )


def _cpu() -> str:
    try:
        facts = dict(re.findall(r"^(model name|flags)\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE))
    except OSError:
        return platform.processor()
    flags = set(facts.get("flags", "").split())
    instructions = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in flags]
    return f"{facts.get('model name', platform.machine())} ({', '.join(instructions)})"


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
