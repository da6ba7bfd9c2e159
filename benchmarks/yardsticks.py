"""What the project asks of its speed, beside what was measured: each a ratio of two figures of one run."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.results import Cell, markdown_table, read_results

COLUMNS = ("what", "ours", "theirs", "measured", "asked", "holds")
NOT_MEASURED = "not measured"


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

    def row(self, ours: float | None, theirs: float | None) -> list[Cell]:
        """The table's row for the two figures."""
        limit, kind = (self.at_most, "most") if self.at_least is None else (self.at_least, "least")
        assert limit is not None, self.what
        ratio = self.theirs is not None
        asked = f"at {kind} {limit:g} {'x' if ratio else self.unit}" if self.unit else f"at {kind} {100 * limit:g} %"
        if ours is None or (theirs is None and ratio):
            return [self.what, ours, theirs, NOT_MEASURED, asked, None]
        measured = ours if theirs is None else ours / theirs
        holds = measured <= limit if self.at_least is None else measured >= limit
        shown = f"{measured:.2f}{' x' if ratio else ''}" if self.unit else f"{100 * measured:.1f} %"
        cells = [None if value is None else f"{value:,.4g} {self.unit}".strip() for value in (ours, theirs)]
        return [self.what, *cells, shown, asked, "yes" if holds else "no"]


ENTRIES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["yardstick"]
YARDSTICKS = [Yardstick(**entry) for entry in ENTRIES]


def yardstick_rows(output: Path) -> list[list[Cell]]:
    """A row per yardstick, from the results that are in the folder."""
    results = {suite: read_results(output / f"{suite}.json") for suite in {one.suite for one in YARDSTICKS}}
    rows = []
    for one in YARDSTICKS:
        measured = results[one.suite].get(one.part)
        figures = measured.part.figures if measured is not None else {}
        rows.append(one.row(figures.get(one.ours), figures.get(one.theirs or "")))
    return rows


def write_yardsticks(output: Path) -> str:
    """Writes yardsticks.md; its text."""
    text = (
        "# Yardsticks\n\nWritten by `make bench` and `make bench-peers` from serving.json and peers.json, which say "
        f"for each part by which command, when and on which machine it was measured.\n\n"
        f"{markdown_table(COLUMNS, yardstick_rows(output))}\n"
    )
    (output / "yardsticks.md").write_text(text, encoding="utf-8")
    return text
