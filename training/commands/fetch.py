"""python -m training fetch RECIPE.toml: builds the recipe's data."""

import argparse
from pathlib import Path

from attendant.runtime.errors import UserError
from attendant.training.data.fetch import fetch
from attendant.training.recipe.recipe import load_recipe


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m training fetch", description="Builds the data that a recipe names by its fetcher."
    )
    found.add_argument("recipe", type=Path, metavar="RECIPE.toml", help="a recipe with [data] fetch = NAME")
    found.add_argument(
        "--set", action="append", default=[], dest="overrides", metavar="TABLE.KEY=VALUE", help="e.g. data.directory=D"
    )
    return found


def run(arguments: argparse.Namespace) -> None:
    config = load_recipe(arguments.recipe, arguments.overrides).data
    if config.fetch is None:
        raise UserError(f"{arguments.recipe} names no fetcher: its files are yours to provide")
    fetch(config, announce=lambda line: print(line, flush=True))
    print(f"{config.directory} holds {config.fetch}")
