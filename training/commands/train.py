"""attendant train RECIPE|DATA: trains, resumes, and measures on the test split; attendant check: shows the data."""

import argparse
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from attendant.runtime.errors import UserError
from attendant.runtime.files import only_writer
from attendant.training.commands import evaluate
from attendant.training.data.config import Split
from attendant.training.data.fetch import fetch
from attendant.training.data.pairs import MOST_CHARACTERS, Pair, read_pairs
from attendant.training.data.tokenization import TokenizerConfig
from attendant.training.kernels.hardware import translate_memory_errors
from attendant.training.loop.experiment import Experiment, prepare
from attendant.training.loop.journal import Journal, SilentJournal
from attendant.training.loop.trainer import Trainer
from attendant.training.loop.update import Processes
from attendant.training.progress import TrainingProgress, make_progress, plain_console, plain_table, say
from attendant.training.recipe import RECIPE_NAME, Recipe, load_recipe, shipped_recipes
from attendant.training.recipe_choice import (
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
CHECK_DESCRIPTION = """\
Reads the data of a recipe, or files of pairs, as `attendant train` would, and shows pairs, lengths,
unknown symbols, duplicates, sources that splits share, scripts, signs of broken texts, and examples. Trains and writes
nothing."""


def train_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="attendant train", description=TRAIN_DESCRIPTION)
    _add_recipe_or_data(parser)
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIRECTORY",
        help="the run directory (default: runs/ and the name of the recipe or the first file)",
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on from the last checkpoint, or begin where there is none"
    )
    return parser


def _add_recipe_or_data(parser: argparse.ArgumentParser) -> None:
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
    run = Run(arguments.output or Path("runs") / run_name(arguments.inputs[0]))
    existed, is_mine = run.path.exists(), False
    processes = Processes()
    if processes.is_first and existed and not arguments.resume:
        raise UserError(f"{run.path} exists: --resume continues it, --output names another")
    held = ExitStack()
    try:
        lines: list[str] = []
        if arguments.resume and not is_recipe(arguments.inputs[0]) and run.recipe_path.exists():
            # A run of files of pairs resumes with the recipe that was chosen for it.
            recipe = load_recipe(run.recipe_path, arguments.overrides)
        else:
            recipe, lines = recipe_of_inputs(arguments.inputs, arguments.overrides)
        if processes.is_first:
            held.enter_context(only_writer(run.path))
            is_mine = True
            for line in [*lines, *([f"its file: {run.recipe_path}"] if lines else [])]:
                say(line)
            fetch(recipe.data, announce=say)
        with translate_memory_errors():
            _train(run, recipe, processes)
    except UserError:
        if processes.is_first:
            raise
        raise SystemExit(2) from None  # the first process prints the error
    finally:
        if is_mine and not existed and not run.metrics_path.exists():
            # No step was made: the directory has at most a corpus and tokenizers, which would block the next attempt.
            shutil.rmtree(run.path, ignore_errors=True)
        held.close()
        processes.leave()


def run_name(name: str) -> str:
    """Returns the name of the run of a recipe or of a file of pairs."""
    path = Path(name if Path(name).exists() else name.partition("[")[0].partition(",")[0])
    if path.is_dir() or path.name == RECIPE_NAME:
        return path.resolve().name if path.is_dir() else path.resolve().parent.name
    return path.stem if is_recipe(name) else path.name.partition(".")[0] or path.name


def _train(run: Run, recipe: Recipe, processes: Processes) -> None:
    experiment = prepare(run, recipe, processes, announce=say)
    trainer = Trainer(experiment, processes)
    first_step = trainer.state.step
    if not processes.is_first:
        trainer.train(SilentJournal(), TrainingProgress(lambda line: None))
        processes.wait()
        return
    for line in (
        *describe(experiment.facts),
        *few_symbols(recipe, experiment.facts["vocabulary_size"]),
        *experiment.warnings,
        _describe_model(experiment, trainer, processes),
    ):
        say(line)
    journal = Journal(run, step=first_step)
    try:
        with make_progress() as progress:
            state = trainer.train(journal, progress)
    finally:
        journal.close()
    processes.wait()  # no process leaves the group while another still listens
    say(f"trained {state.step:,} steps, {state.seconds:.0f} s; best at step {state.best_step}")
    if recipe.data.files("test") is not None and (state.step > first_step or not run.evaluations()):
        evaluate.run_evaluate(evaluate.evaluate_parser().parse_args([str(run.path), "--split", "test"]))
    print(f"next: attendant export {run.path} --output bundles/{run.path.name}")


def describe(facts: Mapping[str, Any]) -> list[str]:
    """Returns lines about the data, and about pairs that were left out of the training split."""
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
    """Returns a line for each vocabulary that has fewer symbols than the recipe allows, with the reason."""
    lines = []
    for side in ("source", "target"):
        config: TokenizerConfig = getattr(recipe, side)
        wanted = config.vocabulary_size
        if wanted is not None and sizes[side] < wanted:
            by_kind = {"bpe": "pair of symbols to merge within a word", "unigram": "part of a word"}
            what = by_kind.get(config.tokenizer, "symbol")
            often = f"{config.min_frequency} times" if config.min_frequency > 1 else "at all"
            lines.append(
                f"{side}: {sizes[side]:,} symbols, and {side}.vocabulary_size = {wanted}: no other {what} "
                f"occurs {often}"
            )
    return lines


def _describe_model(experiment: Experiment, trainer: Trainer, processes: Processes) -> str:
    sizes = experiment.facts["vocabulary_size"]
    together = f", {processes.size} processes" if processes.is_many else ""
    return (
        f"vocabularies {sizes['source']} -> {sizes['target']}, {experiment.model.num_parameters:,} parameters, "
        f"on {experiment.device} in {trainer.precision}{together}"
    )


def check_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="attendant check", description=CHECK_DESCRIPTION)
    _add_recipe_or_data(parser)
    parser.add_argument(
        "--examples", type=int, default=5, metavar="N", help="pairs of each split to show (default: %(default)s)"
    )
    return parser


def run_check(arguments: argparse.Namespace) -> None:
    recipe, lines = recipe_of_inputs(arguments.inputs, arguments.overrides)
    fetch(recipe.data, announce=say)
    with tempfile.TemporaryDirectory(prefix="attendant-check-") as folder:
        corpora = prepare_corpora(recipe, Path(folder), None)
        _show(recipe, corpora, [*lines, *describe(corpora.facts)], max(0, arguments.examples))
    refuse_unknown_targets(recipe, corpora)


def _show(recipe: Recipe, corpora: Corpora, lines: Sequence[str], num_examples: int) -> None:
    console = plain_console()
    for line in [*lines, *few_symbols(recipe, corpora.facts["vocabulary_size"])]:
        console.print(line)
    samples: dict[Split, list[Pair]] = {}
    for split in SPLITS:
        if (files := recipe.data.files(split)) is not None:
            samples[split] = sample_of(corpora.held_out.get(split) or read_pairs(files)).pairs
    _show_counts(corpora.facts, samples)
    for side in ("source", "target"):
        shares = {split: script_shares(getattr(pair, side) for pair in pairs) for split, pairs in samples.items()}
        shown = ", ".join(f"{name} {share:.1%}" for name, share in shares["train"].items())
        console.print(f"scripts of the {side}s: {shown or 'no letters'}")
        main = next(iter(shares["train"]), "")
        for split, scripts in shares.items():
            if (other := next(iter(scripts), "")) != main:
                console.print(f"warning: {split}'s {side}s are mostly {other or 'no letters'}, train's {main}")
    for line in unknown_warnings(recipe, corpora):
        console.print(line)
    for split, pairs in samples.items():
        for line in suspicions(pairs):
            console.print(f"warning: {split}: {line}")
    for split, pairs in samples.items():
        if num_examples:
            console.print(f"examples of {split}:")
        for pair in pairs[:: max(1, len(pairs) // max(1, num_examples))][:num_examples]:
            console.print(f"  {shortened(pair)}")


def _show_counts(facts: Mapping[str, Any], samples: Mapping[Split, Sequence[Pair]]) -> None:
    table = plain_table("", *(f"{split} >" for split in samples))

    def add(name: str, counts: Mapping[Any, Any], form: str = "{:,}") -> None:
        table.add_row(name, *(form.format(counts[split]) if split in counts else "" for split in samples))

    add("pairs", facts["num_pairs"])
    add("empty, left out", facts["num_empty"])
    add("too long, left out", facts["num_too_long"])
    add("duplicates", {"train": facts["num_duplicates"]})
    add("sources that training has too", facts["num_sources_shared_with_training"])
    for side in ("source", "target"):
        lengths = {split: sorted(len(getattr(pair, side)) for pair in pairs) for split, pairs in samples.items()}
        for name, share in (("shortest", 0.0), ("median", 0.5), ("99 % up to", 0.99), ("longest", 1.0)):
            values = {split: counts[round(share * (len(counts) - 1))] for split, counts in lengths.items()}
            add(f"{side} characters, {name}", values)
        add(f"unknown {side} tokens", {split: each[side] for split, each in facts["unknown_shares"].items()}, "{:.1%}")
    plain_console().print(table)
