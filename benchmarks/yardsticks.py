"""What the project asks of its speed, beside what was measured: each a ratio of two figures of one run."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.results import Cell, markdown_table, read_results

COLUMNS = ("what", "ours", "theirs", "measured", "asked", "holds", "bound")
NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What no engine or server of this kind can better here: a figure that would stand in the place of ours.

    Attributes:
        beside: what ours was when that figure was measured, where that was in another run: machines are not always as
            fast, so ours is better by the same factor at most.
    """

    by: str
    part: str
    figure: str
    beside: str | None = None
    suite: str = "serving"


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """An entry of yardsticks.toml, which says what the fields mean."""

    what: str
    suite: str
    part: str
    ours: str
    theirs: str | None = None
    unit: str
    at_least: float | None = None
    at_most: float | None = None
    bound: Bound | None = None

    def row(self, ours: float | None, theirs: float | None, best: float | None) -> list[Cell]:
        """The table's row for the two figures, and the best that ours could be, where that was measured."""
        limit, kind = (self.at_most, "most") if self.at_least is None else (self.at_least, "least")
        assert limit is not None, self.what
        ratio = self.theirs is not None
        asked = f"at {kind} {limit:g} {'x' if ratio else self.unit}" if self.unit else f"at {kind} {100 * limit:g} %"
        if ours is None or (theirs is None and ratio):
            return [self.what, ours, theirs, NOT_MEASURED, asked, None, None]
        measured = ours if theirs is None else ours / theirs
        holds = measured <= limit if self.at_least is None else measured >= limit
        cells = [None if value is None else f"{value:,.4g} {self.unit}".strip() for value in (ours, theirs)]
        bound = None
        if self.bound is not None and best is not None:
            bound = f"{self._shown(best if theirs is None else best / theirs)}: {self.bound.by}"
        return [self.what, *cells, self._shown(measured), asked, "yes" if holds else "no", bound]

    def _shown(self, measured: float) -> str:
        return f"{measured:.2f}{' x' if self.theirs is not None else ''}" if self.unit else f"{100 * measured:.1f} %"


ENTRIES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["yardstick"]
YARDSTICKS = [
    Yardstick(**entry | {"bound": Bound(**entry["bound"]) if "bound" in entry else None}) for entry in ENTRIES
]


def yardstick_rows(output: Path) -> list[list[Cell]]:
    """A row per yardstick, from the results that are in the folder."""
    results = {suite: read_results(output / f"{suite}.json") for suite in ("serving", "peers")}

    def figure(suite: str, part: str, name: str | None) -> float | None:
        measured = results[suite].get(part)
        return measured.part.figures.get(name or "") if measured is not None else None

    def best(ours: float | None, bound: Bound | None) -> float | None:
        if ours is None or bound is None:
            return None
        there, beside = (figure(bound.suite, bound.part, name) for name in (bound.figure, bound.beside))
        if there is None or bound.beside is None:
            return there
        return None if beside is None else ours * there / beside

    rows = []
    for one in YARDSTICKS:
        ours, theirs = (figure(one.suite, one.part, name) for name in (one.ours, one.theirs))
        rows.append(one.row(ours, theirs, best(ours, one.bound)))
    return rows


def write_yardsticks(output: Path) -> str:
    """Writes yardsticks.md; its text."""
    text = (
        "# Yardsticks\n\nWritten by `make bench` and `make bench-peers` from serving.json and peers.json, which say "
        "for each part by which command, when and on which machine it was measured. Bound: what the row would show if "
        "ours cost no more than the thing that is named, which nothing built on it can better on that machine.\n\n"
        f"{markdown_table(COLUMNS, yardstick_rows(output))}\n"
    )
    (output / "yardsticks.md").write_text(text, encoding="utf-8")
    return text
