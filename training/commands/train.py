"""python -m training RECIPE.toml: trains, resumes, and measures on the test part."""

import argparse
from pathlib import Path

from training.checkpoint import load_run
from training.commands.evaluate import measure, show
from training.data.config import CorpusFiles
from training.data.fetch import fetch
from training.experiment import prepare, refuse_existing
from training.journal import Journal
from training.progress import make_progress
from training.recipe import load_recipe
from training.run import Run
from training.trainer import Trainer

DESCRIPTION = """Trains the model of a recipe and leaves a run directory (see training/run.py).
Other subcommands: python -m training fetch RECIPE | evaluate RUN (each with its own --help)."""


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="python -m training", description=DESCRIPTION)
    found.add_argument("recipe", type=Path, metavar="RECIPE.toml", help="the recipe; recipes/ has some")
    found.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="TABLE.KEY=VALUE",
        help="change a value of the recipe, e.g. training.max_epochs=3; may be repeated",
    )
    found.add_argument(
        "--output", type=Path, metavar="DIRECTORY", help="the run directory (default: runs/ and the recipe's name)"
    )
    found.add_argument(
        "--resume", action="store_true", help="go on from the last checkpoint, or begin where there is none"
    )
    return found


def run(arguments: argparse.Namespace) -> None:
    recipe = load_recipe(arguments.recipe, arguments.overrides)
    place = Run(arguments.output or Path("runs") / arguments.recipe.stem)
    if not arguments.resume:
        refuse_existing(place.path)
    fetch(recipe.data, announce=lambda line: print(line, flush=True))
    experiment = prepare(place, recipe)
    facts, model = experiment.facts, experiment.model
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    print(
        f"{facts['num_pairs']['train']:,} pairs, vocabularies {facts['vocabulary_size']['source']} -> "
        f"{facts['vocabulary_size']['target']}, {num_parameters:,} parameters, on {experiment.device}",
        flush=True,
    )
    trainer = Trainer(place, recipe, model, experiment.corpus, experiment.validator, device=experiment.device)
    begun = trainer.state.step
    journal = Journal(place, step=begun)
    try:
        with make_progress() as progress:
            state = trainer.train(journal, progress)
    finally:
        journal.close()
    print(f"trained {state.step:,} steps, {state.seconds:.0f} s; best at step {state.best_step}", flush=True)
    if recipe.data.test is not None and (state.step > begun or not place.evaluations()):
        _measure_on_test(place, recipe.data.test)
    print(f"next: python -m export {place.path} --output bundles/{place.path.name}")


def _measure_on_test(place: Run, files: CorpusFiles) -> None:
    loaded = load_run(place.path)
    measurements = measure(loaded, files, loaded.recipe.evaluation)
    place.record_evaluations([measurement.to_json() for measurement in measurements])
    show(measurements)
