"""python -m benchmarks.peers: Attendant beside its peers, on the same work, in turns."""

from attendant.runtime.command import exit_command
from benchmarks.command import Suite, run_suite
from benchmarks.peers.in_process import beam, greedy, single
from benchmarks.peers.served import served

ABOUT = """The peers come from PyPI into environments of their own, which are kept. A peer that can't be installed or
fails keeps its row, with the reason."""

SUITE = Suite(
    command="benchmarks.peers",
    name="peers",
    title="Attendant and its peers",
    about=ABOUT,
    parts={"greedy": greedy, "beam": beam, "single": single, "served": served},
)

if __name__ == "__main__":
    exit_command("benchmarks.peers", lambda: run_suite(SUITE))
