"""python -m benchmarks: how fast Attendant decodes and serves, and how far that is from its limits."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from attendant.runtime.errors import UserError
from benchmarks.command import Suite, exit_suite
from benchmarks.decoding.bookkeeping import bookkeeping
from benchmarks.decoding.parts import against, alone, decoding
from benchmarks.decoding.products import limit
from benchmarks.serving.closed_loop import served
from benchmarks.serving.open_loop import open_loop
from benchmarks.serving.overhead import idle, idle_latency, overhead, priority
from benchmarks.serving.soak import memory

PARTS = {
    "limit": limit,
    "decoding": decoding,
    "alone": alone,
    "bookkeeping": bookkeeping,
    "served": served,
    "overhead": overhead,
    "idle-latency": idle_latency,
    "open-loop": open_loop,
    "priority": priority,
    "memory": memory,
    "idle": idle,
    "against": against,
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, default=100_000, metavar="N", help="of the part `memory`")
    parser.add_argument(
        "--against", type=Path, metavar="PATH", help="of the part `against`, the only one then: another checkout"
    )


def choose(options: argparse.Namespace) -> Sequence[str]:
    """All parts but the one that needs another checkout, or that one alone. Raises UserError."""
    if options.requests <= 0:
        raise UserError(f"--requests must be positive, got {options.requests}")
    return ["against"] if options.against is not None else [name for name in PARTS if name != "against"]


SUITE = Suite(
    command="benchmarks",
    name="serving",
    title="Speed of decoding and serving",
    about="Measures each part on a machine that should do nothing else.",
    parts=PARTS,
    add_options=add_options,
    choose=choose,
)

if __name__ == "__main__":
    exit_suite(SUITE)
