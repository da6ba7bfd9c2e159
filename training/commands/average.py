"""python -m training average RUN --last N --output DIRECTORY: the mean of the last checkpoints, as a run."""

import argparse
from pathlib import Path

from attendant.runtime.errors import UserError
from attendant.training.run.averaging import average_run
from attendant.training.run.directory import Run


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m training average",
        description="Averages the weights of a run's last validated checkpoints (those that training.keep_checkpoints "
        "kept) into a new run, to be evaluated and exported.",
    )
    found.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    found.add_argument("--last", type=int, default=5, metavar="N", help="so many checkpoints (default: 5)")
    found.add_argument("--output", type=Path, required=True, metavar="DIRECTORY", help="the new run directory")
    return found


def run(arguments: argparse.Namespace) -> None:
    if arguments.last < 1:
        raise UserError(f"--last {arguments.last}: must be at least 1")
    steps = average_run(Run(arguments.run), arguments.last, arguments.output)
    print(f"{arguments.output}: the mean of the weights at steps {', '.join(map(str, steps))}")
    print(f"next: python -m training evaluate {arguments.output}")
