"""python -m benchmarks: how fast Attendant decodes, serves and trains, and how far that is from bounds and peers."""

import argparse
import inspect
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown

from attendant.runtime.command import exit_command
from attendant.runtime.errors import UserError, VerificationFailed
from benchmarks import arrivals, decoding, gpu, own_models, peers, serving, training
from benchmarks.harness import log_line
from benchmarks.results import Measured, Part, add_result, markdown_table, this_machine, write_page, write_yardsticks
from benchmarks.workload import QUICK, Context, Workload

FILE_WIDTH = 170


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Parts whose results are on one page.

    Attributes:
        about: Markdown at the top of the page.
        parts: functions whose docstrings are on the page: the title, then the table's content and its method.
        check: raises UserError for impossible options before anything is measured.
    """

    title: str
    about: str
    parts: Sequence[Callable[[Context], Part]]
    check: Callable[[argparse.Namespace], None] = lambda options: None

    @property
    def by_name(self) -> dict[str, Callable[[Context], Part]]:
        return {part.__name__.replace("_", "-"): part for part in self.parts}

    def chosen(self, options: argparse.Namespace) -> list[str]:
        """Returns the parts that --only names; otherwise `against` if --against is given, else all others.

        Raises:
            UserError: there is no such part.
        """
        names = [name for name in options.only.split(",") if name]
        for name in names:
            if name not in self.by_name:
                raise UserError(f"--only: there is no part {name!r}; there are {', '.join(self.by_name)}")
        names = names or [name for name in self.by_name if name == "against" and options.against]
        return names or [name for name in self.by_name if name != "against"]


SUITES = {
    "serving": Suite(
        title="Speed of decoding and serving",
        about="Each part is measured on an otherwise idle machine.",
        parts=(
            *(decoding.decoding, decoding.alone, decoding.bookkeeping, serving.first_token, serving.overhead),
            *(serving.idle_latency, serving.request_time, arrivals.open_loop, serving.priority, serving.memory),
            *(serving.idle, decoding.against),
        ),
    ),
    "peers": Suite(
        title="Attendant and its peers",
        about=(
            "The peers are installed from PyPI into separate environments, which are kept. A peer that can't be "
            "installed or fails keeps its row, with the reason."
        ),
        parts=(
            *(peers.greedy, peers.beam, peers.single),
            *(peers.served, peers.real_lengths, peers.arrivals, peers.pronunciation),
        ),
    ),
    "own": Suite(
        title="Users' own models",
        about="Modules exported by `attendant.export_model`. Each part is measured on an otherwise idle machine.",
        parts=(own_models.students_greedy, own_models.students_beam, own_models.sharing),
    ),
    "training": Suite(
        title="Training speed",
        about=training.ABOUT,
        parts=(training.input_feeding, training.no_input_feeding),
    ),
    "gpu": Suite(
        title="One decoder step on a GPU",
        about="Parity on a GPU, then the time of a step against PyTorch.",
        parts=(gpu.parity, gpu.greedy, gpu.beam),
        check=gpu.check_provider,
    ),
}


def run(suites: Mapping[str, Suite], arguments: Sequence[str]) -> None:
    """Runs the chosen parts of a suite (by default the first), and writes the results of each as soon as it ends.

    Raises:
        UserError: a bad option.
        VerificationFailed: a part has problems; its results are written.
    """
    common = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    option = common.add_argument
    option("--only", default="", metavar="PART,...", help="of the suite (default: all)")
    option("--cache", type=Path, default=Path(".benchmarks"), help="environments and models")
    option("--output", type=Path, help="for JSON, pages and pictures (default: benchmarks/results)")
    option("--quick", action="store_true", help="tiny sizes, to see that everything runs; writes no results by default")
    description = "; ".join(f"{name}: {', '.join(suite.by_name)}" for name, suite in suites.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=description, parents=[common], allow_abbrev=False
    )
    option = parser.add_argument
    option("suite", nargs="?", choices=suites, default=next(iter(suites)), help="(default: %(default)s)")
    option("--requests", type=_positive, default=100_000, metavar="N", help="serving, `memory` (default: 100,000)")
    option("--against", type=Path, metavar="PATH", help="serving, `against`: another checkout")
    option("--minutes", type=_positive, default=20, help="training: of measuring speed (default: 20)")
    option("--provider", choices=["cuda", "cpu"], default="cuda", help="gpu: where the graphs run")
    option("--budget-seconds", type=float, default=450.0, help="gpu: no measurement starts after this time")
    options = parser.parse_args(arguments)
    # The options that affect results, for the page.
    suite, own_options = suites[options.suite], common.parse_known_args(arguments)[1]
    suite.check(options)
    names = suite.chosen(options)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the started processes, as Ctrl-C does
    # In a file, lines are not folded to 80 columns.
    console = Console() if sys.stdout.isatty() else Console(width=FILE_WIDTH)
    workload = QUICK if options.quick else Workload()
    context = Context(workload=workload, cache=options.cache.resolve(), quick=options.quick, options=options)
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix="attendant-benchmarks-") as scratch:
        output = options.output or Path(scratch if options.quick else "benchmarks/results")
        for name in names:
            machine, command = this_machine(), ["python", "-m", "benchmarks", *own_options, "--only", name]
            log_line(f"{name} ...")
            part = suite.by_name[name](context)
            title, _, about = (inspect.getdoc(suite.by_name[name]) or name).partition("\n\n")
            measured = Measured(
                title=title.rstrip("."), about=about, command=shlex.join(command), machine=machine, part=part
            )
            console.print(Markdown(f"# {measured.title}\n\n{markdown_table(part.columns, part.rows)}"))
            problems += part.problems
            # The file is read again: another command may have written its part meanwhile.
            parts = add_result(output / f"{options.suite}.json", name, measured)
            write_page(output / f"{options.suite}.md", suite.title, suite.about, parts)
            yardsticks = write_yardsticks(output)
        console.print(Markdown(yardsticks))
        if output != Path(scratch):
            log_line(f"written: {options.suite}.json, {options.suite}.md and yardsticks.md in {output}")
    if problems:
        raise VerificationFailed(f"{options.suite}: the measured systems have problems", problems)


def _positive(text: str) -> int:
    if int(text) <= 0:
        raise argparse.ArgumentTypeError(f"must be positive, got {text}")
    return int(text)


if __name__ == "__main__":
    exit_command("benchmarks", lambda: run(SUITES, sys.argv[1:]))
