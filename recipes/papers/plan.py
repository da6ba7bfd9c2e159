"""A plan: a recipe, and variants of it that differ in one thing each, trained from several seeds."""

import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from pydantic import Field

from attendant.runtime.bundle.manifest import MANIFEST_NAME
from attendant.runtime.errors import UserError
from attendant.training.evaluation.metrics import TextMetricName
from attendant.training.recipe import Recipe, load_recipe
from attendant.training.run.directory import Run
from attendant.training.table import Count, Table

PLANS: Final = Path(__file__).parent / "plans"
RUNS: Final = Path("runs/experiments")

LESSON: Final = "lesson"
"""The plan of docs/learn.md, whose models are served side by side."""

LESSON_BUNDLES: Final = Path("bundles/lesson")
LESSON_LINK: Final = "text=attention&model=rnnencdec&open=growth&model.2=rnnsearch&open.2=growth"
"""The address of a first look: both models of Bahdanau et al. (2015)."""

Results = TypeVar("Results", dict[str, Any], list[Any])


class Variant(Table):
    """`[[variants]]`.

    Attributes:
        name: the beginning of the names of its run directories.
        what: its name in a table and a picture.
        group: the kind of its difference from the first variant, which is the base of all groups.
        recipe: the recipe that it changes. If None, the plan's.
        changes: as for `--set`, e.g. "model.cell=gru".
    """

    name: str
    what: str
    group: str
    recipe: Path | None = None
    changes: tuple[str, ...] = ()


class Plan(Table):
    """`plans/NAME.toml`.

    Attributes:
        question: the question that the runs answer.
        page: the page of docs/experiments with the table and picture of the plan's name.
        metric: the metric of the picture.
        recipe: the recipe that variants change.
        changes: the changes of all variants.
        seeds: each variant is trained from each seed.
        variants: the others differ from the first one.
    """

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


def plan_names() -> list[str]:
    return sorted(path.stem for path in PLANS.glob("*.toml"))


def load_plan(name: str) -> Plan:
    return Plan.model_validate(tomllib.loads((PLANS / f"{name}.toml").read_text(encoding="utf-8")))


def run_of(name: str, variant: Variant, seed: int) -> Run:
    """Returns the run of a plan's variant, which may not exist yet."""
    return Run(RUNS / name / f"{variant.name}-{seed}")


def ended_runs(name: str, plan: Plan, variant: Variant) -> list[Run]:
    """Returns the runs of a variant that were evaluated, by seed."""
    return [run for seed in plan.seeds if (run := run_of(name, variant, seed)).evaluations()]


def read_results(path: Path, default: Results) -> Results:
    """Returns the measurements of a JSON file, or `default` if the file does not exist."""
    results: Results = json.loads(path.read_text(encoding="utf-8")) if path.exists() else default
    return results


def train(name: str) -> None:
    """Trains the missing runs, seed by seed, so that each variant has one run before any has two.

    Raises:
        UserError: a training failed.
        KeyboardInterrupt: Ctrl-C or SIGTERM; the training has been saved, and continues the next time.
    """
    plan = load_plan(name)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    runs = [(variant, seed) for seed in plan.seeds for variant in plan.variants]
    for number, (variant, seed) in enumerate(runs, 1):
        run = run_of(name, variant, seed)
        is_done = bool(run.evaluations())
        print(f"{number} of {len(runs)}: {run.path}{', done' if is_done else ''}", flush=True)
        if not is_done:
            command = [sys.executable, "-m", "attendant.training", str(variant.recipe or plan.recipe)]
            command += [part for change in plan.overrides(variant, seed) for part in ("--set", change)]
            _run([*command, "--output", str(run.path), "--resume"])


def prepare_lesson() -> None:
    """Trains and exports the missing models of docs/learn.md, and prints how to serve them side by side.

    Raises:
        UserError: a training or an export failed.
        KeyboardInterrupt: Ctrl-C or SIGTERM; the next call continues there.
    """
    train(LESSON)
    plan = load_plan(LESSON)
    for variant in plan.variants:
        bundle = LESSON_BUNDLES / variant.name
        if not (bundle / MANIFEST_NAME).exists():
            run = run_of(LESSON, variant, plan.seeds[0]).path
            export = [sys.executable, "-m", "attendant.export", str(run), "--output", str(bundle)]
            _run([*export, "--name", variant.name])
    bundles = " ".join(str(LESSON_BUNDLES / variant.name) for variant in plan.variants)
    print(f"serve them:   attendant serve {bundles}")
    print(f"then look at: http://127.0.0.1:9090/#{LESSON_LINK}")


def _run(command: list[str]) -> None:
    """Runs a command of this package on one thread. Raises UserError: it failed."""
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
