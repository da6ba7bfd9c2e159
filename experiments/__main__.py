"""python -m experiments: trains what a plan names, and makes tables and pictures of it."""

import argparse

from attendant.runtime.command import exit_command
from experiments.plan import plan_names
from experiments.trainings import train


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="python -m experiments", description=__doc__)
    commands = found.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train", help="trains what is missing of a plan; Ctrl-C at any time")
    training.add_argument("plan", choices=plan_names())
    return found


def main() -> None:
    arguments = parser().parse_args()
    train(arguments.plan)


if __name__ == "__main__":
    exit_command("experiments", main)
