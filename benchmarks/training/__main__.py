"""python -m benchmarks.training: how fast Attendant trains, beside JoeyNMT and OpenNMT-py."""

import argparse
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from attendant.runtime.command import exit_command
from attendant.runtime.errors import UserError
from benchmarks.training import joeynmt, opennmt
from benchmarks.training.attendant import Attendant
from benchmarks.training.data import write_corpus
from benchmarks.training.environment import Environment, InstallationFailed
from benchmarks.training.machine import this_machine
from benchmarks.training.measurement import measure
from benchmarks.training.system import System
from benchmarks.training.table import page, result, terminal_table, write_results
from benchmarks.training.workload import QUICK, Workload

PEERS: dict[str, tuple[Callable[..., System], Environment]] = {
    "joeynmt": (joeynmt.JoeyNMT, joeynmt.ENVIRONMENT),
    "opennmt": (opennmt.OpenNMT, opennmt.ENVIRONMENT),
}

DESCRIPTION = """Trains the same architecture with Attendant and with its peers, in turn, and compares their speeds.
The peers come from PyPI into environments of their own, which are kept. Run it on a machine that does nothing else."""


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m benchmarks.training",
        description=DESCRIPTION,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    found.add_argument("--peers", default=",".join(PEERS), help="which peers, separated by commas; empty: none")
    found.add_argument("--minutes", type=float, default=20.0, help="of measuring, the installation not counted")
    found.add_argument("--rounds", type=int, default=3, help="how often each system is visited")
    found.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of each system")
    found.add_argument("--cache", type=Path, default=Path(".benchmarks"), help="environments, data and logs")
    found.add_argument("--output", type=Path, default=Path("benchmarks/results"), help="for training.json and .md")
    found.add_argument("--torch-index", metavar="URL", help="an index with a CPU build of torch, beside pip's own")
    found.add_argument("--quick", action="store_true", help="tiny sizes: does everything run? Writes no results")
    return found


def systems(peers: list[str], cache: Path) -> Iterator[System]:
    """With input feeding, then without; Attendant's variants among the peers'."""
    for input_feeding in (True, False):
        for peer in peers:
            yield PEERS[peer][0](input_feeding=input_feeding, cache=cache)
        for precision in ("fp32", "bf16"):
            yield Attendant(input_feeding=input_feeding, precision=precision)


def main() -> None:
    arguments = parser().parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the training that runs is stopped too
    peers = [name for name in arguments.peers.split(",") if name]
    for name in peers:
        if name not in PEERS:
            raise UserError(f"--peers: there is no {name!r}; known: {', '.join(PEERS)}")
    for option in ("minutes", "rounds", "threads"):
        if getattr(arguments, option) <= 0:
            raise UserError(f"--{option} must be positive, got {getattr(arguments, option)}")
    cache = arguments.cache.resolve()
    for name in peers:
        _say(f"installing {name}, where it is not there yet")
        try:
            PEERS[name][1].install(cache, arguments.torch_index)
        except InstallationFailed as error:
            raise UserError(f"{name} can't be installed; leave it out with --peers, or mend this:\n{error}") from None
    workload = QUICK if arguments.quick else Workload()
    corpus = write_corpus(workload, cache / "data")
    machine, chosen = this_machine(), list(systems(peers, cache))
    measurements = measure(
        chosen,
        workload,
        corpus,
        folder=cache / "runs",
        num_rounds=arguments.rounds,
        visit_seconds=60 * arguments.minutes / (arguments.rounds * len(chosen)),
        num_threads=arguments.threads,
        announce=_say,
    )
    command = shlex.join(["python", "-m", "benchmarks.training", *sys.argv[1:]])
    found = result(chosen, measurements, workload, machine, command=command, num_threads=arguments.threads)
    print(terminal_table(found))
    if not arguments.quick:
        write_results(found, page(found, workload, machine), arguments.output)
        _say(f"written: {arguments.output / 'training.json'}, {arguments.output / 'training.md'}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    exit_command("benchmarks.training", main)
