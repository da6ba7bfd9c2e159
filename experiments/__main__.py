"""python -m experiments: see experiments/commands.py."""

import sys

from attendant.runtime.command import exit_command


def main() -> None:
    """Imports the commands here: torch takes seconds, and Ctrl-C must end that with one line too."""
    from experiments.commands import main as command  # noqa: PLC0415

    command(sys.argv[1:])


if __name__ == "__main__":
    exit_command("experiments", main)
