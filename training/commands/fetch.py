"""attendant fetch RECIPE|NAME: builds a recipe's data, or a data set by its name."""

import argparse
from pathlib import Path

from attendant.runtime.errors import UserError
from attendant.training.data.fetch import builders, fetch, publish
from attendant.training.progress import say
from attendant.training.recipe import load_recipe, shipped_recipes


def fetch_parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        prog="attendant fetch",
        description="Builds the data of a recipe that has [data] fetch, or a data set by its name, into data/NAME.",
    )
    options.add_argument(
        "recipe",
        metavar="RECIPE|NAME",
        help="a recipe (a file, a folder, or one that comes along), or a data set: "
        f"{', '.join(sorted(builders()))} (words without targets, for `attendant label`, are english-words)",
    )
    options.add_argument(
        "--set", action="append", default=[], dest="overrides", metavar="TABLE.KEY=VALUE", help="e.g. data.directory=D"
    )
    return options


def run_fetch(arguments: argparse.Namespace) -> None:
    name = arguments.recipe
    if name in builders() and name not in shipped_recipes():
        if arguments.overrides:
            raise UserError(f"--set {arguments.overrides[0]}: is for recipes, and {name} is a data set")
        directory = Path("data") / name
        publish(directory, name, builders()[name], announce=say)
        print(f"{directory} holds {name}")
        return
    config = load_recipe(Path(name), arguments.overrides).data
    if config.fetch is None:
        raise UserError(f"{name} has no [data] fetch: its files are yours to provide")
    fetch(config, announce=say)
    print(f"{config.directory} holds {config.fetch}")
