"""attendant train, check and fetch: commands on a recipe, or on files of pairs, and on their data."""

import argparse
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attendant.runtime.command import CommandParser
from attendant.runtime.errors import UserError
from attendant.training.commands.evaluate import show_results
from attendant.training.data.config import Split
from attendant.training.data.fetch import builders, fetch, publish
from attendant.training.data.pairs import Pair, read_pairs
from attendant.training.library.training import describe, few_symbols, train
from attendant.training.loop.update import Processes
from attendant.training.progress import plain_console, plain_table, print_line
from attendant.training.recipe import RECIPE_NAME, Recipe, load_recipe, shipped_recipes
from attendant.training.recipe_choice import recipe_of_inputs, sample_of, script_shares, shortened, suspicions
from attendant.training.run.corpora import SPLITS, Corpora, prepare_corpora, refuse_unknown_targets, warnings_of
from attendant.training.run.loading import starting_run, teaching_runs

TRAIN_DESCRIPTION = """\
Trains the model of a recipe and writes a run directory: recipe, checkpoints, measured values, log.
For files of pairs it chooses a recipe, and writes it to the run directory.
To train in several processes, run torchrun --nproc_per_node N -m attendant.training RECIPE. They share each batch, and
all need access to the run directory and the data.
Related commands, each with its --help: attendant check RECIPE|DATA | fetch RECIPE | evaluate RUN | report RUN |
average RUN | label RUN"""
CHECK_DESCRIPTION = """\
Reads the data of a recipe, or files of pairs, as `attendant train` would, and shows pairs, lengths,
unknown symbols, duplicates, sources shared by splits, scripts, signs of broken texts, and examples. Trains nothing and
writes nothing, except a fetcher's data that are missing."""


def train_parser() -> CommandParser:
    parser = CommandParser(prog="attendant train", description=TRAIN_DESCRIPTION)
    _add_recipe_or_data(parser)
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIRECTORY",
        help="the run directory (default: runs/ and the name of the recipe or the first file)",
    )
    parser.add_argument(
        "--resume", action="store_true", help="continue from the last checkpoint, or begin if there is none"
    )
    return parser


def _add_recipe_or_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="RECIPE|DATA",
        help=f"a TOML file, a folder with a {RECIPE_NAME}, or an included recipe "
        f"({', '.join(shipped_recipes())}); or files of pairs, for which a recipe is chosen: FILE (.tsv, .csv, .jsonl, "
        "also compressed), FILE[COLUMN,COLUMN], or SOURCE,TARGET",
    )
    _add_set(parser, "change a value of the recipe, e.g. training.max_epochs=3; may be repeated")


def _add_set(parser: argparse.ArgumentParser, about: str) -> None:
    metavar = "TABLE.KEY=VALUE"
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar=metavar, help=about)


def run_train(arguments: argparse.Namespace) -> None:
    is_first = Processes().is_first
    try:
        trained = train(
            arguments.inputs,
            output=arguments.output,
            overrides=arguments.overrides,
            resume=arguments.resume,
            verbose=True,
        )
    except BrokenPipeError:
        raise UserError("the output has lost its reader, so the training has stopped: --resume continues it") from None
    except UserError:
        if is_first:
            raise
        raise SystemExit(2) from None  # the first process prints the error
    if trained.results is not None:
        show_results(trained.results)
    if is_first:
        command = ["attendant", "export", str(trained.path), "--output", f"bundles/{trained.path.name}"]
        print(f"next: {shlex.join(command)}")


def check_parser() -> CommandParser:
    parser = CommandParser(prog="attendant check", description=CHECK_DESCRIPTION)
    _add_recipe_or_data(parser)
    parser.add_argument(
        "--examples", type=int, default=5, metavar="N", help="pairs of each split to show (default: %(default)s)"
    )
    return parser


def run_check(arguments: argparse.Namespace) -> None:
    recipe, lines = recipe_of_inputs(arguments.inputs, arguments.overrides)
    fetch(recipe.data, announce=print_line)
    start = starting_run(recipe)
    teachers = teaching_runs(recipe, start)
    tokenizers_of = start or next(iter(teachers), None)
    with tempfile.TemporaryDirectory(prefix="attendant-check-") as folder:
        corpora = prepare_corpora(recipe, Path(folder), tokenizers_of.tokenizers() if tokenizers_of else None)
        _show(recipe, corpora, [*lines, *describe(corpora.facts)], max(0, arguments.examples))
    refuse_unknown_targets(recipe, corpora)


def _show(recipe: Recipe, corpora: Corpora, lines: Sequence[str], num_examples: int) -> None:
    console = plain_console()
    for line in [*lines, *few_symbols(recipe, corpora.facts["vocabulary_size"])]:
        console.print(line)
    samples: dict[Split, list[Pair]] = {}
    for split in SPLITS:
        if (files := recipe.data.files(split)) is not None:
            samples[split], _ = sample_of(corpora.held_out.get(split) or read_pairs(files))
    _show_counts(corpora.facts, samples)
    for side in ("source", "target"):
        shares = {split: script_shares(getattr(pair, side) for pair in pairs) for split, pairs in samples.items()}
        shown = ", ".join(f"{name} {share:.1%}" for name, share in shares["train"].items())
        console.print(f"scripts of the {side}s: {shown or 'no letters'}")
        main = next(iter(shares["train"]), "")
        for split, scripts in shares.items():
            if (other := next(iter(scripts), "")) != main:
                console.print(f"warning: {split}'s {side}s are mostly {other or 'no letters'}, train's {main}")
    for line in warnings_of(corpora):
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
    add("too long or empty when normalized, left out", facts["num_too_long"])
    add("duplicates", {"train": facts["num_duplicates"]})
    add("sources that training has too", facts["num_sources_shared_with_training"])
    for side in ("source", "target"):
        lengths = {split: sorted(len(getattr(pair, side)) for pair in pairs) for split, pairs in samples.items()}
        for name, share in (("shortest", 0.0), ("median", 0.5), ("99 % up to", 0.99), ("longest", 1.0)):
            values = {split: counts[round(share * (len(counts) - 1))] for split, counts in lengths.items()}
            add(f"{side} characters, {name}", values)
        add(f"unknown {side} tokens", {split: each[side] for split, each in facts["unknown_shares"].items()}, "{:.1%}")
    plain_console().print(table)


def fetch_parser() -> CommandParser:
    parser = CommandParser(
        prog="attendant fetch",
        description="Builds the data of a recipe that has [data] fetch, or a data set by its name, into data/NAME.",
    )
    parser.add_argument(
        "recipe",
        metavar="RECIPE|NAME",
        help="a recipe (a file, a folder, or an included one), or a data set: "
        f"{', '.join(sorted(builders()))} (words without targets, for `attendant label`, are english-words)",
    )
    _add_set(parser, "e.g. data.directory=D")
    return parser


def run_fetch(arguments: argparse.Namespace) -> None:
    name = arguments.recipe
    if name in builders() and name not in shipped_recipes():
        if arguments.overrides:
            raise UserError(f"--set {arguments.overrides[0]}: is for recipes, and {name} is a data set")
        directory = Path("data") / name
        publish(directory, name, builders()[name], announce=print_line)
        print(f"{directory} holds {name}")
        return
    config = load_recipe(Path(name), arguments.overrides).data
    if config.fetch is None:
        raise UserError(f"{name} has no [data] fetch: its files are yours to provide")
    fetch(config, announce=print_line)
    print(f"{config.directory} holds {config.fetch}")
