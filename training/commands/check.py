"""attendant check RECIPE|DATA: reads a training's data as the training would, and shows what is in them."""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from attendant.training.commands.train import add_recipe_or_data, describe, few_symbols
from attendant.training.data.fetch import fetch
from attendant.training.data.inspection import EvenSample, sample_of, script_shares, shortened, suspicions
from attendant.training.data.pairs import read_pairs
from attendant.training.recipe.choosing import recipe_of_inputs
from attendant.training.recipe.recipe import Recipe
from attendant.training.run.corpora import (
    SPLITS,
    Corpora,
    prepare_corpora,
    refuse_unknown_targets,
    unknown_warnings,
)
from attendant.training.terminal import say

DESCRIPTION = """Reads the data of a recipe, or files of pairs, as `attendant train` would, and shows pairs, lengths,
unknown symbols, duplicates, sources that splits share, scripts, signs of broken texts, and examples. Trains and writes
nothing."""
PIPE_WIDTH = 200


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="attendant check", description=DESCRIPTION)
    add_recipe_or_data(options)
    options.add_argument(
        "--examples", type=int, default=5, metavar="N", help="pairs of each split to show (default: %(default)s)"
    )
    return options


def run(arguments: argparse.Namespace) -> None:
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
    console.print(_table(corpora, samples))
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


def _table(corpora: Corpora, samples: dict[Any, EvenSample]) -> Table:
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
