"""python -m training: see training/commands."""

import os
import sys
from collections.abc import Sequence

# OpenMP's threads spin while they wait for each other, and where another process wants the cores too, a training is
# then many times slower. It reads this when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from runtime.command import exit_command
from training.commands import average, evaluate, fetch, report, train

SUBCOMMANDS = {"average": average, "evaluate": evaluate, "fetch": fetch, "report": report}


def main(arguments: Sequence[str]) -> None:
    """A first argument that names a subcommand is that; anything else is a recipe."""
    command = SUBCOMMANDS.get(arguments[0]) if arguments else None
    rest = arguments if command is None else arguments[1:]
    chosen = command or train
    chosen.run(chosen.parser().parse_args(rest))


if __name__ == "__main__":
    exit_command("training", lambda: main(sys.argv[1:]))
