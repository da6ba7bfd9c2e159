"""How fast Attendant trains, beside JoeyNMT and OpenNMT-py."""

import argparse
import os
from pathlib import Path

from attendant.runtime.errors import UserError
from benchmarks.command import Context
from benchmarks.harness.measurement import Measurement, figures, measure, table
from benchmarks.harness.results import Cell, Part
from benchmarks.training.data import write_corpus
from benchmarks.training.toolkits import TOOLKITS, Training
from benchmarks.training.watching import system_of

NUM_ROUNDS = 3
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
    num_threads = len(os.sched_getaffinity(0))
    toolkits = [TOOLKITS[name] for name in [*_peers(context.options), "attendant"]]
    pairs = [(toolkit, precision) for toolkit in toolkits for precision in toolkit.precisions]
    # The minutes are for both parts.
    seconds = 60 * context.options.minutes / (2 * NUM_ROUNDS * len(pairs))
    corpus = write_corpus(context.workload, context.cache / "data")
    systems = []
    for toolkit, precision in pairs:
        training = Training(
            workload=context.workload,
            corpus=corpus,
            folder=context.cache / "runs" / f"{toolkit.name.lower()}-{precision}",
            input_feeding=input_feeding,
            precision=precision,
            num_threads=num_threads,
        )
        systems.append(system_of(toolkit, training, seconds, context.cache))
    found = measure(systems, num_rounds=NUM_ROUNDS, say=context.say)
    peers = [one.median("speed") for one in found if one.samples and not one.system.key.startswith("attendant")]
    return Part(
        columns=COLUMNS,
        rows=table(found, len(COLUMNS), lambda one: _cells(one, max(peers, default=None))),
        figures=figures(found),
        note=f"Threads of each: {num_threads}.",
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


def refuse_unknown_peers(options: argparse.Namespace) -> None:
    """Raises UserError."""
    for name in _peers(options):
        if name not in PEERS:
            raise UserError(f"--peers: there is no {name!r}; known: {', '.join(PEERS)}")


def _peers(options: argparse.Namespace) -> list[str]:
    return PEERS if options.peers is None else [name for name in options.peers.split(",") if name]
