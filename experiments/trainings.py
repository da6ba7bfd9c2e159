"""The trainings of a plan, one after another; those that are done are left alone, and one that was cut goes on."""

import os
import subprocess
import sys
import time

from attendant.runtime.errors import UserError
from attendant.training.loop.trainer import Interruption
from experiments.plan import Plan, load_plan, run_of

POLL_SECONDS = 0.1


def train(name: str) -> None:
    """Trains what is missing, seed by seed, so that each variant has a run before one has two.

    Raises:
        UserError: there is no such plan; a training failed.
        KeyboardInterrupt: Ctrl-C or SIGTERM; the training was saved.
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
        status = _run(command)
        if status:
            raise UserError(f"{run.path}: its training ended with status {status}")


def _run(command: list[str]) -> int:
    """The status of a training; told to end, as we are, it saves itself first.

    It has a session of its own, so that Ctrl-C reaches it from here alone, once: at a second signal it ends unsaved.

    Raises:
        KeyboardInterrupt: it has ended because we were told to.
    """
    with Interruption() as interruption:
        training = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, start_new_session=True)
        try:
            told = False
            while (status := training.poll()) is None:
                time.sleep(POLL_SECONDS)
                if interruption.requested and not told:
                    training.terminate()
                    told = True
        finally:
            if training.poll() is None:
                training.terminate()
    if interruption.requested:
        raise KeyboardInterrupt
    return status


def _check(plan: Plan) -> None:
    """A mistake of the last variant is told before the first is trained."""
    for variant in plan.variants:
        plan.resolved(variant, plan.seeds[0])
