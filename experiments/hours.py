"""How long what is missing of the plans will train, reckoned from a few batches of each variant."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from attendant.training.data.batches import BatchPlan
from attendant.training.data.fetch import fetch
from attendant.training.loop.experiment import prepare
from attendant.training.recipe import Recipe
from attendant.training.run.directory import Run
from experiments.cost import training_of
from experiments.pages import write_table
from experiments.plan import load_plan, plan_names, run_of

HEADINGS = ("`train`", "variant", "seeds", "target tokens/s", "hours of one training", "hours")


def reckon(names: list[str]) -> None:
    """Writes the table of docs/experiments/next.md, of these plans or of all: hours of one core without other work."""
    torch.set_num_threads(1)
    write_table("next", "hours", HEADINGS, [row for name in names or plan_names() for row in _rows(name)])


def _rows(name: str) -> Iterator[list[str]]:
    plan = load_plan(name)
    for variant in plan.variants:
        missing = [seed for seed in plan.seeds if not run_of(name, variant, seed).evaluations()]
        if missing:
            speed, num_tokens = _speed(plan.resolved(variant, missing[0]))
            hours = num_tokens / speed / 3600
            seeds = ", ".join(map(str, missing))
            yield [name, variant.what, seeds, f"{speed:,.0f}", f"{hours:.2f}", f"{hours * len(missing):.1f}"]


def _speed(recipe: Recipe) -> tuple[float, float]:
    """Target tokens per second of processor time, and how many the training will see."""
    fetch(recipe.data, announce=print)
    with tempfile.TemporaryDirectory() as folder:
        experiment = prepare(Run(Path(folder)), recipe)
    corpus, training = experiment.corpus, recipe.training
    num_batches = BatchPlan(corpus, recipe.batches, recipe.seed).num_batches
    steps = training.step_limit(num_batches)
    assert steps is not None, "a plan's trainings end after so many steps or epochs"
    num_epochs = steps / training.steps_of_an_epoch(num_batches)
    num_tokens = len(corpus.targets.ids) + len(corpus.targets)
    return training_of(recipe, experiment.model, corpus)(), num_tokens * num_epochs
