"""python -m benchmarks.training: how fast Attendant trains, beside JoeyNMT and OpenNMT-py."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from attendant.runtime.errors import UserError
from benchmarks.command import Context, Suite, exit_suite
from benchmarks.harness.measurement import Measurement, figures, measure, table
from benchmarks.harness.results import Cell, Part
from benchmarks.training.data import write_corpus
from benchmarks.training.toolkits import TOOLKITS, Training
from benchmarks.training.watching import system_of

PEERS = [name for name in TOOLKITS if name != "attendant"]
COLUMNS = ["system", "tokens/s", "to the faster peer", "slowest-fastest", "windows", "tokens/processor s", "parameters"]
ABOUT = (Path(__file__).parent / "about.md").read_text(encoding="utf-8") + "\n".join(
    f"* {one.name} {one.version}: {one.differences}." for one in TOOLKITS.values()
)


def input_feeding(context: Context) -> Part:
    """With input feeding."""
    return _part(context, input_feeding=True)


def no_input_feeding(context: Context) -> Part:
    """Without input feeding."""
    return _part(context, input_feeding=False)


def _part(context: Context, *, input_feeding: bool) -> Part:
    options = context.options
    toolkits = [TOOLKITS[name] for name in [*_peers(options), "attendant"]]
    pairs = [(toolkit, precision) for toolkit in toolkits for precision in toolkit.precisions]
    # The minutes are for both parts.
    seconds = 60 * options.minutes / (2 * options.rounds * len(pairs))
    corpus = write_corpus(context.workload, context.cache / "data")
    systems = []
    for toolkit, precision in pairs:
        training = Training(
            workload=context.workload,
            corpus=corpus,
            folder=context.cache / "runs" / f"{toolkit.name.lower()}-{precision}",
            input_feeding=input_feeding,
            precision=precision,
            num_threads=options.threads,
        )
        systems.append(system_of(toolkit, training, seconds, context.cache, options.torch_index))
    found = measure(systems, num_rounds=options.rounds, say=context.say)
    peers = [one.median("speed") for one in found if one.samples and not one.system.key.startswith("attendant")]
    return Part(
        columns=COLUMNS,
        rows=table(found, len(COLUMNS), lambda one: _cells(one, max(peers, default=None))),
        figures=figures(found),
        note=f"Threads of each: {options.threads}.",
    )


def _cells(one: Measurement, faster_peer: float | None) -> list[Cell]:
    speed, parameters = one.median("speed"), one.samples.get("parameters")
    return [
        f"{speed:,.0f}",
        None if faster_peer is None else f"{speed / faster_peer:.2f}",
        one.spread("speed"),
        str(len(one.samples["speed"])),
        f"{one.median('cpu_speed'):,.0f}",
        None if parameters is None else f"{parameters[0] / 1e6:.2f} M",
    ]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--peers", default=",".join(PEERS), help="which peers, separated by commas; empty: none")
    parser.add_argument("--minutes", type=float, default=20.0, help="of measuring, the installation not counted")
    parser.add_argument("--rounds", type=int, default=3, help="how often each system is visited")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of each system")
    parser.add_argument("--torch-index", metavar="URL", help="an index with a CPU build of torch, beside pip's own")


def choose(options: argparse.Namespace) -> Sequence[str]:
    """Both parts. Raises UserError where an option makes no sense."""
    for name in _peers(options):
        if name not in PEERS:
            raise UserError(f"--peers: there is no {name!r}; known: {', '.join(PEERS)}")
    for option in ("minutes", "rounds", "threads"):
        if getattr(options, option) <= 0:
            raise UserError(f"--{option} must be positive, got {getattr(options, option)}")
    return list(SUITE.parts)


def _peers(options: argparse.Namespace) -> list[str]:
    return [name for name in options.peers.split(",") if name]


SUITE = Suite(
    command="benchmarks.training",
    name="training",
    title="Training speed",
    about=ABOUT,
    parts={"input-feeding": input_feeding, "no-input-feeding": no_input_feeding},
    add_options=add_options,
    choose=choose,
)

if __name__ == "__main__":
    exit_suite(SUITE)
