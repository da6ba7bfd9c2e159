"""The trainings of a plan, one after another; those that are done are left alone, and one that was cut goes on."""

import os
import subprocess
import sys

from attendant.runtime.errors import UserError
from experiments.plan import Plan, load_plan, run_of


def train(name: str) -> None:
    """Trains what is missing, seed by seed, so that each variant has a run before one has two.

    Raises:
        UserError: there is no such plan; a training failed.
        KeyboardInterrupt: Ctrl-C; the training was saved.
    """
    plan = load_plan(name)
    _check(plan)
    wanted = [(variant, seed) for seed in plan.seeds for variant in plan.variants]
    for place, (variant, seed) in enumerate(wanted, 1):
        run = run_of(name, variant, seed)
        print(f"{place} of {len(wanted)}: {run.path}", end="", flush=True)
        if run.evaluations():
            print(", done")
            continue
        print(flush=True)
        changes = [part for change in plan.overrides(variant, seed) for part in ("--set", change)]
        where = ["--output", str(run.path), "--resume"]
        command = [sys.executable, "-m", "training", str(plan.recipe_of(variant)), *changes, *where]
        training = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"})
        try:
            status = training.wait()
        except KeyboardInterrupt:
            training.wait()  # it has had Ctrl-C too, and saves itself
            raise
        if status:
            raise UserError(f"{run.path}: its training ended with status {status}")


def _check(plan: Plan) -> None:
    """A mistake of the last variant is told before the first is trained."""
    for variant in plan.variants:
        plan.resolved(variant, plan.seeds[0])
