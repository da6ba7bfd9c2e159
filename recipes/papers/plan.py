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

from attendant.runtime.errors import UserError
from attendant.training.evaluation.metrics import TextMetricName
from attendant.training.recipe import Recipe, load_recipe
from attendant.training.run.directory import Run
from attendant.training.table import Count, Table

PLANS: Final = Path(__file__).parent / "plans"
RUNS: Final = Path("runs/experiments")

Results = TypeVar("Results", dict[str, Any], list[Any])


class Variant(Table):
    """`[[variants]]`.

    Attributes:
        name: the beginning of the names of its run directories.
        what: its name in a table and a picture.
        group: the kind of its difference from the first variant, which is the base of all groups.
        recipe: the recipe that it changes; None: the plan's.
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
            run_command([*command, "--output", str(run.path), "--resume"])


def run_command(command: list[str]) -> None:
    """Runs a command of this package on one thread.

    Raises:
        UserError: it failed.
        KeyboardInterrupt: as `train`.
    """
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
