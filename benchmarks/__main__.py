"""python -m benchmarks: how fast Attendant decodes, serves and trains, and how far that is from limits and peers."""

import argparse
import sys
from pathlib import Path

from attendant.runtime.command import exit_command
from benchmarks.command import Suite, run
from benchmarks.decoding import bookkeeping, products
from benchmarks.decoding import parts as decoding
from benchmarks.gpu import parts as gpu
from benchmarks.peers import decoders as peers
from benchmarks.peers import served as served_peers
from benchmarks.pronunciation import parts as pronunciation
from benchmarks.serving import closed_loop, open_loop, overhead, request_time, soak
from benchmarks.training import kernels, speed

SUITES = {
    "serving": Suite(
        title="Speed of decoding and serving",
        about="Measures each part on a machine that should do nothing else.",
        parts=(
            products.limit,
            decoding.decoding,
            decoding.alone,
            bookkeeping.bookkeeping,
            closed_loop.served,
            closed_loop.first_token,
            overhead.overhead,
            overhead.idle_latency,
            request_time.request_time,
            open_loop.open_loop,
            overhead.priority,
            soak.memory,
            overhead.idle,
            decoding.against,
        ),
        asked_for=("against",),
    ),
    "peers": Suite(
        title="Attendant and its peers",
        about=(
            "The peers come from PyPI into environments of their own, which are kept. A peer that can't be installed "
            "or fails keeps its row, with the reason."
        ),
        parts=(
            peers.greedy,
            peers.beam,
            peers.single,
            served_peers.served,
            served_peers.real_lengths,
            served_peers.arrivals,
            pronunciation.pronunciation,
        ),
    ),
    "training": Suite(
        title="Training speed",
        about=speed.ABOUT,
        parts=(speed.input_feeding, speed.no_input_feeding, kernels.kernels),
    ),
    "gpu": Suite(
        title="One decoder step on a GPU",
        about="Parity on a GPU, then the time of a step against PyTorch.",
        parts=(gpu.parity, gpu.greedy, gpu.beam),
        check=gpu.refuse_missing,
    ),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("--requests", type=_positive, default=100_000, metavar="N", help="serving, `memory` (default: 100,000)")
    option("--against", type=Path, metavar="PATH", help="serving, `against`: another checkout")
    option("--peers", type=speed.peer_names, default=speed.PEERS, help="training: names, with commas (default: all)")
    option("--minutes", type=_positive, default=20, help="training: of measuring speed (default: 20)")
    option("--provider", choices=["cuda", "cpu"], default="cuda", help="gpu: where the graphs run")
    option("--budget-seconds", type=float, default=450.0, help="gpu: what is not measured by then is left out")


def _positive(text: str) -> int:
    if int(text) <= 0:
        raise argparse.ArgumentTypeError(f"must be positive, got {text}")
    return int(text)


if __name__ == "__main__":
    exit_command("benchmarks", lambda: run(SUITES, add_options, sys.argv[1:]))
