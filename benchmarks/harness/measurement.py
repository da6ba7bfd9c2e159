"""Systems measured in turns: a machine that slows down slows all of them."""

import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from attendant.runtime.errors import UserError
from benchmarks.harness.results import Cell, Part, Picture

Samples = Mapping[str, float | list[float]]
"""Figures by name, of each one sample or several; the one that is shown while the benchmark runs stands first."""

Visit = Callable[[int], Samples]
"""Measures a running system once. Takes the number of the round, from 1, which is also a seed. No figures: the system
has nothing to measure at this point."""

Visits = Mapping[str, Visit]
"""What is done in a round, by the endings of the figures' names: one visit for each load or size."""


class Unavailable(UserError):
    """A system that can't be installed, did not start, or failed under way; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """What is measured: a toolkit, a server or an engine, with its settings.

    Attributes:
        key: its figures' names begin with it. Several settings of one system may share it: the best one counts.
        name: of its row in the table.
        start: a generator that installs what is missing, starts the system and warms it up, yields its visits, and
            stops it at the end. Raises Unavailable.
        about: version, and how its model or its work differs from the others', for the page.
    """

    key: str
    name: str
    start: Callable[[], Iterator[Visits]]
    about: str = ""


def running_system(key: str, name: str, visits: Visits) -> System:
    """A system that was started before, and is stopped after, it is measured."""

    def start() -> Iterator[Visits]:
        yield visits

    return System(key=key, name=name, start=start)


@dataclass(slots=True)
class Measurement:
    """What is known of one system.

    Attributes:
        samples: by figure, of all rounds.
        problem: why there are none.
        point: the ending that `at` has taken off the figures' names.
    """

    system: System
    samples: dict[str, list[float]] = field(default_factory=dict)
    problem: str | None = None
    point: str = ""

    def median(self, figure: str) -> float:
        """Over all samples.

        Raises:
            Unavailable: the system failed.
            KeyError: the figure was not measured.
        """
        if self.problem is not None:
            raise Unavailable(f"{self.system.name}: {self.problem}")
        return statistics.median(self.samples[figure])

    def spread(self, figure: str) -> str:
        """The least and the greatest sample."""
        return f"{min(self.samples[figure]):,.0f}-{max(self.samples[figure]):,.0f}"

    def at(self, point: str) -> "Measurement":
        """What was measured at one load or size, by the names that the visit itself gave the figures."""
        own = {name.removesuffix(point): found for name, found in self.samples.items() if name.endswith(point)}
        return replace(self, samples=own, point=point)

    @contextmanager
    def noting_failure(self) -> Iterator[None]:
        """Keeps the reason of a failure in place of the figures: partial ones are none."""
        try:
            yield
        except Unavailable as error:
            self.samples.clear()
            self.problem = str(error)
            say(f"{self.system.name}: {error}")

    def take(self, found: Samples, ending: str = "") -> str:
        """Keeps a visit's figures; the first one in words."""
        for figure, value in found.items():
            self.samples.setdefault(figure + ending, []).extend(value if isinstance(value, list) else [value])
        return "".join(f"{figure} {self.samples[figure + ending][-1]:,.4g}" for figure in list(found)[:1])


def say(line: str) -> None:
    """To whoever waits for the figures."""
    print(line, file=sys.stderr, flush=True)


def measure(systems: Sequence[System], num_rounds: int) -> list[Measurement]:
    """Starts all systems, then visits each once a round, point by point; in the order given."""
    measurements = [Measurement(system) for system in systems]
    with ExitStack() as exits:
        visits: list[Visits] = []
        for one in measurements:
            visits.append({})
            with one.noting_failure():
                visits[-1] = exits.enter_context(contextmanager(one.system.start)())
        for number in range(1, num_rounds + 1):
            for point in zip_longest(*(each.items() for each in visits)):
                said = []
                for one, visit in zip(measurements, point, strict=True):
                    if visit is not None and one.problem is None:
                        with one.noting_failure():
                            said.append(f"{one.system.name}: {one.take(visit[1](number), visit[0])}")
                say(f"round {number} of {num_rounds}: {'; '.join(said)}")
    return measurements


Columns = Mapping[str, str | Callable[[Measurement], Cell]]
"""By the titles of a table's columns: the figure whose median stands there, or what makes the cell. A figure that a
system lacks leaves its cell empty.
"""


def part_of(
    measurements: Sequence[Measurement],
    columns: Columns,
    *,
    what: str = "system",
    points: Iterable[str] = ("",),
    best_by: str | None = None,
    pictures: Sequence[Picture] = (),
    note: str = "",
) -> Part:
    """The measurements as a table, and their figures.

    Args:
        what: stands above the names of the systems.
        points: a row for each at which a system was measured. A system without figures has one row, with the reason in
            its last column.
        best_by: see `figures`.
    """
    rows: list[list[Cell]] = []
    for one in measurements:
        if one.problem is not None:
            rows.append([one.system.name, *[None] * (len(columns) - 1), f"not measured: {one.problem}"])
        for found in (one.at(point) for point in points):
            if found.samples:
                rows.append([one.system.name, *(_cell(found, column) for column in columns.values())])
    best = figures(measurements, best_by)
    return Part(columns=[what, *columns], rows=rows, figures=best, pictures=list(pictures), note=note)


def _cell(found: Measurement, column: str | Callable[[Measurement], Cell]) -> Cell:
    if not isinstance(column, str):
        return column(found)
    return found.median(column) if column in found.samples else None


def spread_of(figure: str) -> Callable[[Measurement], Cell]:
    """A cell with the least and the greatest sample."""
    return lambda one: one.spread(figure)


def remarks(one: Measurement) -> Cell:
    """A cell with what is to be known of the system."""
    return one.system.about


def figures(measurements: Sequence[Measurement], best_by: str | None = None) -> dict[str, float]:
    """The medians as `<key>_<figure>`; of measurements with one key those of the greatest `best_by`."""
    found: dict[str, float] = {}
    for one in sorted(measurements, key=lambda one: one.median(best_by) if best_by and one.samples else 0.0):
        found |= {f"{one.system.key}_{figure}": one.median(figure) for figure in one.samples}
    return found


def curves(
    measurements: Sequence[Measurement], figure: str, points: Mapping[str, float]
) -> dict[str, list[tuple[float, float]]]:
    """Each system's line in a picture: the median figure at the points where it was measured, over their numbers."""
    lines = {
        one.system.name: [(x, one.median(figure + end)) for end, x in points.items() if figure + end in one.samples]
        for one in measurements
    }
    return {name: line for name, line in lines.items() if line}
