"""The harness of all experiments: their plans, runs and results, and the tables and pictures of docs/experiments.

A plan trains a recipe and its variants from several seeds. Each variant changes a single setting of the recipe.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
from matplotlib.axes import Axes
from pydantic import Field

from attendant.runtime.bundle.manifest import MANIFEST_NAME
from attendant.runtime.errors import UserError
from attendant.runtime.files import write_text
from attendant.training.evaluation.metrics import TextMetricName
from attendant.training.recipe import Recipe, load_recipe
from attendant.training.report.pictures import line_of, marker, on_paper, series_color, styled_figure, svg_of
from attendant.training.run.directory import Run
from attendant.training.table import Count, Table

PAGES: Final = Path(__file__).resolve().parents[2] / "docs" / "experiments"
PLANS: Final = Path(__file__).parent / "plans"
RUNS: Final = Path("runs/experiments")

LESSON: Final = "lesson"  # The plan of docs/learn.md, whose models are served side by side.
LESSON_BUNDLES: Final = Path("bundles/lesson")
LESSON_LINK: Final = "text=attention&model=rnnencdec&open=growth&model.2=rnnsearch&open.2=growth"
"""The address of a first look: both models of Bahdanau et al. (2015)."""


class Variant(Table):
    """`[[variants]]`.

    Attributes:
        name: the beginning of the names of its run directories.
        label: its name in a table and a picture.
        group: the kind of its difference from the first variant, which is the base of all groups.
        recipe: the recipe that it changes. If None, the plan's.
        changes: as for `--set`, e.g. "model.cell=gru".
    """

    name: str
    label: str
    group: str
    recipe: Path | None = None
    changes: tuple[str, ...] = ()


class Plan(Table):
    """`plans/NAME.toml`.

    Attributes:
        name: NAME.
        question: the question that the runs answer.
        page: the page of docs/experiments with the table and picture of the plan's name.
        metric: the metric of the picture.
        recipe: the recipe that variants change.
        changes: the changes of all variants.
        seeds: each variant is trained from each seed.
        variants: the others differ from the first one.
    """

    name: str
    question: str
    page: str
    metric: TextMetricName
    recipe: Path
    changes: tuple[str, ...] = ()
    seeds: Annotated[tuple[Count, ...], Field(min_length=1)] = (1, 2, 3)
    variants: Annotated[tuple[Variant, ...], Field(min_length=1)]

    def overrides(self, variant: Variant, seed: int) -> list[str]:
        """Returns the changes of a run, as for `--set`."""
        return [*self.changes, *variant.changes, f"seed={seed}"]

    def resolved(self, variant: Variant, seed: int) -> Recipe:
        """Returns the recipe of a run. Raises UserError: a change that no recipe takes."""
        return load_recipe(variant.recipe or self.recipe, self.overrides(variant, seed))

    def run(self, variant: Variant, seed: int) -> Run:
        """Returns the run of a variant, which may not exist yet."""
        return Run(RUNS / self.name / f"{variant.name}-{seed}")

    def ended_runs(self, variant: Variant) -> list[Run]:
        """Returns the runs of a variant that were evaluated, by seed."""
        return [run for seed in self.seeds if (run := self.run(variant, seed)).evaluations()]

    def without_runs(self) -> UserError:
        """Returns the error for a plan that lacks ended runs."""
        return UserError(f"{self.name}: its trainings have not ended: python -m recipes.papers train {self.name}")


def load_plan(name: str) -> Plan:
    content = tomllib.loads((PLANS / f"{name}.toml").read_text(encoding="utf-8"))
    return Plan.model_validate(content | {"name": name})


def train(plan: Plan) -> None:
    """Trains the missing runs, seed by seed, so that each variant has one run before any has two.

    Raises:
        UserError: a training failed.
        KeyboardInterrupt: Ctrl-C or SIGTERM; the training has been saved, and continues the next time.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    runs = [(variant, seed) for seed in plan.seeds for variant in plan.variants]
    for number, (variant, seed) in enumerate(runs, 1):
        run = plan.run(variant, seed)
        is_done = bool(run.evaluations())
        print(f"{number} of {len(runs)}: {run.path}{', done' if is_done else ''}", flush=True)
        if not is_done:
            changes = [part for change in plan.overrides(variant, seed) for part in ("--set", change)]
            _run("training", variant.recipe or plan.recipe, *changes, "--output", run.path, "--resume")


def prepare_lesson() -> None:
    """Trains and exports the missing models of docs/learn.md, and prints how to serve them side by side.

    Raises:
        UserError: a training or an export failed.
        KeyboardInterrupt: Ctrl-C or SIGTERM; the next call continues there.
    """
    plan = load_plan(LESSON)
    train(plan)
    bundles = [LESSON_BUNDLES / variant.name for variant in plan.variants]
    for variant, bundle in zip(plan.variants, bundles, strict=True):
        if not (bundle / MANIFEST_NAME).exists():
            _run("export", plan.run(variant, plan.seeds[0]).path, "--output", bundle, "--name", variant.name)
    print(f"serve them:   attendant serve {' '.join(map(str, bundles))}")
    print(f"then look at: http://127.0.0.1:9090/#{LESSON_LINK}")


def _run(room: str, *arguments: str | Path) -> None:
    """Runs a command of this package on one thread. Raises UserError: it failed."""
    command = [sys.executable, "-m", f"attendant.{room}", *map(str, arguments)]
    # In a session of its own, so that Ctrl-C reaches it once, from here: a second signal would end it unsaved.
    process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, start_new_session=True)
    try:
        status = process.wait()
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        raise
    if status:
        raise UserError(f"{' '.join(command[2:])} ended with status {status}")


def read_results(path: Path, default: Any) -> Any:
    """Returns the measurements of a JSON file, or `default` if the file does not exist."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else default


def write_table(page: str, name: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table, and replaces the table between `<!-- name -->` and `<!-- end -->` of a page."""
    lines = [f"| {' | '.join(cells)} |" for cells in (headings, ["---"] * len(headings), *rows)]
    print("\n".join(lines), flush=True)
    path = PAGES / f"{page}.md"
    pattern = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
    text, count = pattern.subn(lambda marks: f"{marks[1]}{chr(10).join(lines)}\n{marks[2]}", path.read_text("utf-8"))
    assert count == 1, f"{path} has {count} places for {name}"
    write_text(path, text)


def spread(values: Sequence[float], digits: int = 1, interval: tuple[float, float] | None = None) -> str:
    """Returns the mean with the lowest and highest value; for a single value its interval, if it has one."""
    if not values:
        return ""
    mean = f"{np.mean(values):.{digits}f}"
    bounds = (min(values), max(values)) if len(values) > 1 else interval
    return f"{mean} ({bounds[0]:.{digits}f} to {bounds[1]:.{digits}f})" if bounds else mean


def draw_runs(
    axis: Axes,
    number: int,
    label: str,
    positions: Sequence[float],
    runs: Sequence[Sequence[float]],
    band: Sequence[Sequence[float]] | None = None,
) -> None:
    """Draws a line through the runs' means, and a band, by default from the lowest to the highest run."""
    low, high = band or (np.min(runs, 0), np.max(runs, 0))
    axis.fill_between(positions, low, high, color=series_color(number), alpha=0.16, linewidth=0)
    axis.plot(positions, np.mean(runs, 0), marker=marker(number), label=label, **line_of(number))


@contextmanager
def picture(name: str, height: float, *, columns: int = 1) -> Iterator[list[Axes]]:
    """Yields axes in a row; writes their picture, of this height in inches, to docs/experiments/images/NAME.svg."""
    with styled_figure((7.5, height)) as figure:
        yield [figure.add_subplot(1, columns, column + 1) for column in range(columns)]
        write_picture(name, svg_of(figure))


def write_picture(name: str, svg: str) -> None:
    write_text(PAGES / "images" / f"{name}.svg", on_paper(svg))
