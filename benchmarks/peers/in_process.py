"""Attendant and its peers in process."""

from benchmarks.command import Context
from benchmarks.decoding.in_process import BEAM_SIZE, one_by_one, throughput
from benchmarks.harness.results import Part
from benchmarks.peers.decoders import all_decoders


def greedy(context: Context) -> Part:
    """Greedy, in process.

    Sentences per second, each system at its best setting of those tried.
    """
    return throughput(context, list(all_decoders(context)), beam_size=1)


def beam(context: Context) -> Part:
    """Beam 4, in process.

    As before, with a beam. The best hypothesis is returned.
    """
    return throughput(context, list(all_decoders(context)), beam_size=BEAM_SIZE)


def single(context: Context) -> Part:
    """One sentence alone, in process, one thread.

    Median latency of 20 source positions and as many steps, greedy.
    """
    return one_by_one(context, list(all_decoders(context, alone=True)))
