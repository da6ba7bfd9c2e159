"""python -m training: see training/commands."""

import os
import sys
from collections.abc import Sequence

# How often OpenMP's threads look for work before they sleep; it reads this when torch is loaded. A step is thousands of
# short pieces of work: threads that sleep at once are woken for each, which takes a fifth of the time and more. By
# themselves they would look 30 times as often, and be in each other's way where another process wants the cores too.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

from attendant.runtime.command import exit_command
from attendant.training.commands import average, evaluate, fetch, label, report, train

SUBCOMMANDS = {"average": average, "evaluate": evaluate, "fetch": fetch, "label": label, "report": report}


def main(arguments: Sequence[str]) -> None:
    """A first argument that names a subcommand is that; anything else is a recipe."""
    command = SUBCOMMANDS.get(arguments[0]) if arguments else None
    rest = arguments if command is None else arguments[1:]
    chosen = command or train
    chosen.run(chosen.parser().parse_args(rest))


if __name__ == "__main__":
    exit_command("training", lambda: main(sys.argv[1:]))
