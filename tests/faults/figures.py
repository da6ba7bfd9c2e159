"""Figures that the fault tests measure at full size: stored between runs, and written as a page."""

import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.results import Cell, Measured, Part, add_result, read_results, shown, this_machine, write_page

COMMAND = "make reliability"
TITLE = "Reliability"
ABOUT = """Effects of attacks, overload and faults on a server, measured by the tests in `tests/faults` at full size.
[docs/reliability.md](../../docs/reliability.md) describes each attack and the protection against it."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The bound of a figure: at most, or at least, this value."""

    side: Literal["at most", "at least"]
    value: float

    def holds(self, measured: float) -> bool:
        return measured <= self.value if self.side == "at most" else measured >= self.value

    def __str__(self) -> str:
        return f"{self.side} {shown(self.value)}"


def at_most(value: float) -> Bound:
    return Bound("at most", value)


def at_least(value: float) -> Bound:
    return Bound("at least", value)


def if_a_core_is_free(num_workers: int, bound: Bound) -> Bound | None:
    """Returns the bound if the server's main process has a core in addition to those of its workers, else None.

    Without that core, the figure depends on how the kernel shares the cores. docs/reliability.md compares it with a
    plain server's.
    """
    return bound if len(os.sched_getaffinity(0)) > num_workers else None


class Figures:
    """The figures of one run, by subject."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, list[Cell]]] = defaultdict(dict)
        self._machine = this_machine()

    def add(self, subject: str, name: str, measured: float, bound: Bound | None, unit: str) -> None:
        self._rows[subject][name] = [name, float(measured), str(bound or ""), unit]

    def write(self, folder: Path) -> None:
        """Writes the figures. They replace those of an earlier run with the same names; others stay."""
        if not self._rows:
            return
        path = folder / "reliability.json"
        for subject, rows in self._rows.items():
            before = read_results(path).get(subject)
            kept: dict[str, list[Cell]] = {str(row[0]): row for row in before.part.rows} if before else {}
            part = Part(columns=["", "measured", "must be", "unit"], rows=list((kept | rows).values()))
            measured = Measured(title=subject, about="", command=COMMAND, machine=self._machine, part=part)
            add_result(path, subject, measured)
        write_page(folder / "reliability.md", TITLE, ABOUT, read_results(path))
