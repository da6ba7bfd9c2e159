"""python -m training: see training/commands."""

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from attendant.runtime.command import Command, ended_by_interrupts, exit_command, require, suggestion
from attendant.runtime.errors import UserError

SUBCOMMANDS = {
    "average": "runs",
    "check": "train",
    "evaluate": "evaluate",
    "fetch": "train",
    "label": "runs",
    "report": "runs",
}  # Subcommand -> its file in training/commands.


def command(name: str) -> Command:
    """Returns a subcommand, or `train`. Imports its modules here, because torch takes seconds.

    Raises:
        ModuleNotFoundError: a package is not installed.
    """
    file = SUBCOMMANDS.get(name, name)
    if file == "train":
        require("tomli_w")  # A missing package is reported before torch is imported.
    with ended_by_interrupts():
        module = import_module(f"attendant.training.commands.{file}")
    return Command(getattr(module, f"{name}_parser")(), getattr(module, f"run_{name}"))


def main(arguments: Sequence[str]) -> None:
    """Runs the subcommand that the first argument names, or trains if it names none.

    Raises:
        UserError: neither a subcommand nor a file, but nearly a subcommand; or the command's own.
    """
    if not arguments or arguments[0] not in SUBCOMMANDS:
        is_word = bool(arguments) and "." not in arguments[0] and not Path(arguments[0]).exists()
        if is_word and (meant := suggestion(arguments[0], SUBCOMMANDS)):
            raise UserError(f"{arguments[0]}: is neither a recipe (NAME.toml) nor a command{meant}")
        command("train")(arguments)
    else:
        command(arguments[0])(arguments[1:])


if __name__ == "__main__":
    exit_command("training", lambda: main(sys.argv[1:]), "cpu,training")
