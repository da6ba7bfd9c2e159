"""python -m benchmarks: how fast Attendant decodes, serves and trains, and how far that is from limits and peers."""

import sys

from attendant.runtime.command import exit_command
from benchmarks import gpu
from benchmarks.command import Suite, run
from benchmarks.decoding import bookkeeping
from benchmarks.decoding import parts as decoding
from benchmarks.peers import decoders as peers
from benchmarks.peers import served as served_peers
from benchmarks.pronunciation import parts as pronunciation
from benchmarks.serving import loops, overhead, soak
from benchmarks.training import kernels, speed

SUITES = {
    "serving": Suite(
        title="Speed of decoding and serving",
        about="Measures each part on a machine that should do nothing else.",
        parts=(
            decoding.limit,
            decoding.decoding,
            decoding.alone,
            bookkeeping.bookkeeping,
            loops.served,
            loops.first_token,
            overhead.overhead,
            overhead.idle_latency,
            overhead.request_time,
            loops.open_loop,
            overhead.priority,
            soak.memory,
            overhead.idle,
            decoding.against,
        ),
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


if __name__ == "__main__":
    exit_command("benchmarks", lambda: run(SUITES, sys.argv[1:]))
