"""attendant train RECIPE|DATA: trains, resumes, and measures on the test split; attendant check: shows the data."""

import argparse
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from attendant.runtime.errors import UserError
from attendant.runtime.files import only_writer
from attendant.training.commands import evaluate
from attendant.training.data.fetch import fetch
from attendant.training.data.pairs import MOST_CHARACTERS, read_pairs
from attendant.training.data.tokenization import TokenizerConfig
from attendant.training.loop.experiment import Experiment, prepare, translate_memory_errors
from attendant.training.loop.journal import Journal, SilentJournal
from attendant.training.loop.trainer import Trainer
from attendant.training.loop.update import Processes
from attendant.training.progress import TrainingProgress, make_progress, say
from attendant.training.recipe import RECIPE_NAME, Recipe, load_recipe, shipped_recipes
from attendant.training.recipe_choice import (
    EvenSample,
    is_recipe,
    recipe_of_inputs,
    sample_of,
    script_shares,
    shortened,
    suspicions,
)
from attendant.training.run.corpora import (
    SPLITS,
    Corpora,
    prepare_corpora,
    refuse_unknown_targets,
    unknown_warnings,
)
from attendant.training.run.directory import Run

TRAIN_DESCRIPTION = """\
Trains the model of a recipe and leaves a run directory: recipe, checkpoints, values measured, log.
For files of pairs it chooses a recipe, which the run directory keeps.
In several processes: torchrun --nproc_per_node N -m attendant.training RECIPE; they share each batch, and all must
reach the run directory and the data.
Related commands, each with its --help: attendant check RECIPE|DATA | fetch RECIPE | evaluate RUN | report RUN |
average RUN | label RUN"""


def train_parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="attendant train", description=TRAIN_DESCRIPTION)
    add_recipe_or_data(found)
    found.add_argument(
        "--output",
        type=Path,
        metavar="DIRECTORY",
        help="the run directory (default: runs/ and the name of the recipe or the first file)",
    )
    found.add_argument(
        "--resume", action="store_true", help="go on from the last checkpoint, or begin where there is none"
    )
    return found


def add_recipe_or_data(parser: argparse.ArgumentParser) -> None:
    """Adds a recipe or files of pairs, and --set, for `recipe_of_inputs` (training/recipe_choice.py)."""
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="RECIPE|DATA",
        help=f"a TOML file, a folder with a {RECIPE_NAME}, or a recipe that comes along "
        f"({', '.join(shipped_recipes())}); or files of pairs, for which a recipe is chosen: FILE (.tsv, .csv, .jsonl, "
        "also compressed), FILE[COLUMN,COLUMN], or SOURCE,TARGET",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="TABLE.KEY=VALUE",
        help="change a value of the recipe, e.g. training.max_epochs=3; may be repeated",
    )


def run_train(arguments: argparse.Namespace) -> None:
    place = Run(arguments.output or Path("runs") / run_name(arguments.inputs[0]))
    was_there, is_mine = place.path.exists(), False
    processes = Processes()
    if processes.is_first and was_there and not arguments.resume:
        raise UserError(f"{place.path} exists: --resume continues it, --output names another")
    held = ExitStack()
    try:
        recipe, chosen = _recipe_of(arguments, place)
        if processes.is_first:
            held.enter_context(only_writer(place.path))
            is_mine = True
            for line in chosen:
                say(line)
            fetch(recipe.data, announce=say)
        with translate_memory_errors():
            _train(place, recipe, processes)
    except UserError:
        if processes.is_first:
            raise
        raise SystemExit(2) from None  # the first one says it
    finally:
        if is_mine and not was_there and not place.metrics_path.exists():
            # No step was made: a corpus and tokenizers at most, which would be in the way of the next attempt.
            shutil.rmtree(place.path, ignore_errors=True)
        held.close()
        processes.leave()


def run_name(name: str) -> str:
    """Returns what the run of a recipe or of a file of pairs is called."""
    path = Path(name if Path(name).exists() else name.partition("[")[0].partition(",")[0])
    if path.is_dir() or path.name == RECIPE_NAME:
        return path.resolve().name if path.is_dir() else path.resolve().parent.name
    return path.stem if is_recipe(name) else path.name.partition(".")[0] or path.name


def _recipe_of(arguments: argparse.Namespace, place: Run) -> tuple[Recipe, list[str]]:
    """Returns the recipe, and lines about what was chosen. A run of files of pairs resumes with the recipe it has."""
    if arguments.resume and not is_recipe(arguments.inputs[0]) and place.recipe_path.exists():
        return load_recipe(place.recipe_path, arguments.overrides), []
    recipe, lines = recipe_of_inputs(arguments.inputs, arguments.overrides)
    return recipe, [*lines, *([f"its file: {place.recipe_path}"] if lines else [])]


def _train(place: Run, recipe: Recipe, processes: Processes) -> None:
    experiment = prepare(place, recipe, processes, announce=say)
    trainer = Trainer(experiment, processes)
    begun = trainer.state.step
    if not processes.is_first:
        trainer.train(SilentJournal(), TrainingProgress(lambda line: None))
        processes.wait()
        return
    few = few_symbols(recipe, experiment.facts["vocabulary_size"])
    for line in (
        *describe(experiment.facts),
        *few,
        *experiment.warnings,
        _describe_model(experiment, trainer, processes),
    ):
        say(line)
    journal = Journal(place, step=begun)
    try:
        with make_progress() as progress:
            state = trainer.train(journal, progress)
    finally:
        journal.close()
    processes.wait()  # nobody hangs up on another that is still listening
    say(f"trained {state.step:,} steps, {state.seconds:.0f} s; best at step {state.best_step}")
    if recipe.data.files("test") is not None and (state.step > begun or not place.evaluations()):
        evaluate.run_evaluate(evaluate.evaluate_parser().parse_args([str(place.path), "--split", "test"]))
    print(f"next: attendant export {place.path} --output bundles/{place.path.name}")


def describe(facts: Mapping[str, Any]) -> list[str]:
    """Returns lines about what the data hold, and what was left out of the training split."""
    counts = {
        "empty": facts["num_empty"]["train"],
        "too long": facts["num_too_long"]["train"],
        "of too unequal lengths": facts["num_unequal"]["train"],
        "duplicates or of shared sources": facts["num_left_out"],
    }
    left_out = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    lines = [
        f"{facts['num_trained_pairs']:,} of {facts['num_pairs']['train']:,} pairs"
        + (left_out and f"; left out: {left_out}")
    ]
    lines += facts["notes"]
    for side, (least, median, most, longest) in facts["lengths"].items():
        lines.append(f"{side}s: {least} to {longest} tokens, half of them up to {median}, 99 % up to {most}")
    for split, count in facts["num_empty"].items():
        if count and split != "train":
            lines.append(f"empty pairs left out of {split}: {count:,}")
    for split, count in facts["num_huge"].items():
        if count:
            lines.append(
                f"pairs left out of {split}, with a text of more than {MOST_CHARACTERS:,} characters: {count:,}"
            )
    if facts["num_duplicates"]:
        lines.append(f"duplicates in the training split: {facts['num_duplicates']:,} (see data.drop_duplicates)")
    for split, count in facts["num_sources_shared_with_training"].items():
        if count:
            lines.append(f"sources of {split} that are in the training split too: {count:,} (see data.shared_sources)")
    if count := facts["num_sources_shared_by_validation_and_test"]:
        lines.append(f"sources in both validation and test: {count:,}")
    return lines


def few_symbols(recipe: Recipe, sizes: Mapping[str, int]) -> list[str]:
    """Why a vocabulary has fewer symbols than the recipe asks for, a line for each that has."""
    lines = []
    for side in ("source", "target"):
        config: TokenizerConfig = getattr(recipe, side)
        asked = config.vocabulary_size
        if asked is not None and sizes[side] < asked:
            what = "pair of symbols to merge within a word" if config.tokenizer == "bpe" else "symbol"
            often = f"{config.min_frequency} times" if config.min_frequency > 1 else "at all"
            lines.append(
                f"{side}: {sizes[side]:,} symbols, and {side}.vocabulary_size = {asked}: no other {what} occurs {often}"
            )
    return lines


def _describe_model(experiment: Experiment, trainer: Trainer, processes: Processes) -> str:
    sizes = experiment.facts["vocabulary_size"]
    together = f", {processes.size} processes" if processes.is_many else ""
    return (
        f"vocabularies {sizes['source']} -> {sizes['target']}, {experiment.model.num_parameters:,} parameters, "
        f"on {experiment.device} in {trainer.precision}{together}"
    )


CHECK_DESCRIPTION = """\
Reads the data of a recipe, or files of pairs, as `attendant train` would, and shows pairs, lengths,
unknown symbols, duplicates, sources that splits share, scripts, signs of broken texts, and examples. Trains and writes
nothing."""
PIPE_WIDTH = 200


def check_parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="attendant check", description=CHECK_DESCRIPTION)
    add_recipe_or_data(options)
    options.add_argument(
        "--examples", type=int, default=5, metavar="N", help="pairs of each split to show (default: %(default)s)"
    )
    return options


def run_check(arguments: argparse.Namespace) -> None:
    recipe, lines = recipe_of_inputs(arguments.inputs, arguments.overrides)
    fetch(recipe.data, announce=say)
    with tempfile.TemporaryDirectory(prefix="attendant-check-") as folder:
        corpora = prepare_corpora(recipe, Path(folder), None)
        _show(recipe, corpora, [*lines, *describe(corpora.facts)], max(0, arguments.examples))
    refuse_unknown_targets(recipe, corpora)


def _show(recipe: Recipe, corpora: Corpora, lines: Sequence[str], num_examples: int) -> None:
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    for line in [*lines, *few_symbols(recipe, corpora.facts["vocabulary_size"])]:
        console.print(line)
    samples = {split: _sample(recipe, corpora, split) for split in SPLITS if recipe.data.files(split) is not None}
    console.print(_counts(corpora, samples))
    for side in ("source", "target"):
        shares = {
            split: script_shares(getattr(pair, side) for pair in sample.pairs) for split, sample in samples.items()
        }
        shown = ", ".join(f"{name} {share:.1%}" for name, share in shares["train"].items())
        console.print(f"scripts of the {side}s: {shown or 'no letters'}")
        main = next(iter(shares["train"]), "")
        for split, scripts in shares.items():
            if (other := next(iter(scripts), "")) != main:
                console.print(f"warning: {split}'s {side}s are mostly {other or 'no letters'}, train's {main}")
    for line in unknown_warnings(recipe, corpora):
        console.print(line)
    for split, sample in samples.items():
        for line in suspicions(sample.pairs):
            console.print(f"warning: {split}: {line}")
    for split, sample in samples.items():
        if num_examples:
            console.print(f"examples of {split}:")
        for pair in sample.pairs[:: max(1, len(sample.pairs) // max(1, num_examples))][:num_examples]:
            console.print(f"  {shortened(pair)}")


def _sample(recipe: Recipe, corpora: Corpora, split: Any) -> EvenSample:
    if split in corpora.held_out:
        return sample_of(corpora.held_out[split])
    files = recipe.data.files(split)
    assert files is not None
    return sample_of(read_pairs(files))


def _counts(corpora: Corpora, samples: dict[Any, EvenSample]) -> Table:
    facts = corpora.facts
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    for split in samples:
        table.add_column(split, justify="right")

    def add(name: str, counts: dict[Any, Any], form: str = "{:,}") -> None:
        table.add_row(name, *(form.format(counts[split]) if split in counts else "" for split in samples))

    add("pairs", facts["num_pairs"])
    add("empty, left out", facts["num_empty"])
    add("too long, left out", facts["num_too_long"])
    add("duplicates", {"train": facts["num_duplicates"]})
    add("sources that training has too", facts["num_sources_shared_with_training"])
    for side in ("source", "target"):
        lengths = {
            split: sorted(len(getattr(pair, side)) for pair in sample.pairs) for split, sample in samples.items()
        }
        for name, share in (("shortest", 0.0), ("median", 0.5), ("99 % up to", 0.99), ("longest", 1.0)):
            values = {split: counts[round(share * (len(counts) - 1))] for split, counts in lengths.items()}
            add(f"{side} characters, {name}", values)
        shares = {split: of_split[side] for split, of_split in facts["unknown_shares"].items()}
        add(f"unknown {side} tokens", shares, "{:.1%}")
    return table
