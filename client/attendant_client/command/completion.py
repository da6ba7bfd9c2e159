"""`attendant completion SHELL`: what a shell needs to complete the command."""

import argparse
from collections.abc import Mapping
from pathlib import Path

import shtab

SHELLS = ("bash", "zsh", "fish")
PATHS = ("FILE", "BUNDLE", "RUN", "RECIPE", "PEM", "DIRECTORY")
"""How the metavariables of options begin that take a path."""


def script(parser: argparse.ArgumentParser, further: Mapping[str, argparse.ArgumentParser], shell: str) -> str:
    """The script for a shell.

    Args:
        parser: of the whole command.
        further: of those subcommands that are only named in it.
    """
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    commands.choices.update(further)
    for command in commands.choices.values():
        for action in command._actions:
            if action.type is Path or str(action.metavar).startswith(PATHS):
                action.complete = shtab.FILE
    return shtab.complete(parser, shell)
