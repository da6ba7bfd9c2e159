"""python -m benchmarks.peers: Attendant beside its peers, on the same work, in turns."""

from benchmarks.command import Context, Suite, exit_suite
from benchmarks.decoding.in_process import BEAM_SIZE, one_by_one, throughput
from benchmarks.harness.results import Part
from benchmarks.peers.decoders import all_decoders
from benchmarks.peers.served import served


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


SUITE = Suite(
    command="benchmarks.peers",
    name="peers",
    title="Attendant and its peers",
    about=(
        "The peers come from PyPI into environments of their own, which are kept. A peer that can't be installed or\n"
        "fails keeps its row, with the reason."
    ),
    parts={"greedy": greedy, "beam": beam, "single": single, "served": served},
)

if __name__ == "__main__":
    exit_suite(SUITE)
