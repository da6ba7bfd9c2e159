"""attendant fetch RECIPE: builds the recipe's data; attendant fetch NAME: sources to label."""

import argparse
from pathlib import Path

from attendant.runtime.errors import UserError
from attendant.training.data.fetch import FETCHERS, SOURCES, fetch, fetch_sources
from attendant.training.progress import say
from attendant.training.recipe import load_recipe


def fetch_parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="attendant fetch",
        description="Builds the data that a recipe names by its fetcher, or sources without targets, for `attendant "
        "label`.",
    )
    found.add_argument(
        "recipe",
        metavar="RECIPE|NAME",
        help=f"a recipe that has [data] fetch, a file or one that comes along; or sources alone: {', '.join(SOURCES)}",
    )
    found.add_argument(
        "--set", action="append", default=[], dest="overrides", metavar="TABLE.KEY=VALUE", help="e.g. data.directory=D"
    )
    return found


def run_fetch(arguments: argparse.Namespace) -> None:
    if arguments.recipe in SOURCES:
        if arguments.overrides:
            raise UserError(f"--set {arguments.overrides[0]}: is for recipes, and {arguments.recipe} is none")
        print(f"{fetch_sources(arguments.recipe, announce=say)} holds {arguments.recipe}")
        return
    if arguments.recipe in FETCHERS:
        raise UserError(f"{arguments.recipe} is what a recipe's [data] fetch names: name a recipe that has it")
    config = load_recipe(Path(arguments.recipe), arguments.overrides).data
    if config.fetch is None:
        raise UserError(f"{arguments.recipe} names no fetcher: its files are yours to provide")
    fetch(config, announce=say)
    print(f"{config.directory} holds {config.fetch}")
