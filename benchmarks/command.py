"""The command of the benchmarks: which parts to run, with which options, and where the results go."""

import argparse
import inspect
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown

from attendant.runtime.errors import UserError, VerificationFailed
from benchmarks.harness.measurement import say
from benchmarks.harness.results import Measured, Part, add_result, markdown_table, this_machine, write_page
from benchmarks.mt import mt_bundle
from benchmarks.workload import QUICK, Workload
from benchmarks.yardsticks import write_yardsticks

FILE_WIDTH = 170


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a part is run with.

    Attributes:
        cache: environments and models, kept between runs.
        quick: so little that it says nothing but that everything runs.
        options: of the command.
        began: when the command did, by time.monotonic().
    """

    workload: Workload
    cache: Path
    quick: bool = False
    options: argparse.Namespace = field(default_factory=argparse.Namespace)
    began: float = field(default_factory=time.monotonic)

    @property
    def bundle(self) -> Path:
        """The bundle of the workload's sizes; made at the first use."""
        return mt_bundle(self.workload, self.cache)

    @property
    def num_rounds(self) -> int:
        return 1 if self.quick else 5

    @property
    def visit_seconds(self) -> float:
        return 0.1 if self.quick else 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Parts whose results stand on one page.

    Attributes:
        about: Markdown, on top of the page.
        parts: their docstrings stand on the page: title, then what the table shows and how it was measured.
        check: raises UserError where options make no sense, before anything is measured.
    """

    title: str
    about: str
    parts: Sequence[Callable[[Context], Part]]
    check: Callable[[argparse.Namespace], None] = lambda options: None

    @property
    def named(self) -> dict[str, Callable[[Context], Part]]:
        return {part.__name__.replace("_", "-"): part for part in self.parts}

    def chosen(self, options: argparse.Namespace) -> list[str]:
        """The parts that --only names; where it names none, with --against that part, and otherwise all others. Raises
        UserError.
        """
        names = [name for name in options.only.split(",") if name]
        for name in names:
            if name not in self.named:
                raise UserError(f"--only: there is no part {name!r}; there are {', '.join(self.named)}")
        names = names or [name for name in self.named if name == "against" and options.against]
        return names or [name for name in self.named if name != "against"]


def run(suites: Mapping[str, Suite], arguments: Sequence[str]) -> None:
    """Runs what the command line asks for, and writes each part as soon as it stands.

    Args:
        suites: the first one runs where the command line names none.

    Raises:
        UserError: an option that makes no sense.
        VerificationFailed: a part found what must not be; its results are written.
    """
    common = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    option = common.add_argument
    option("--only", default="", metavar="PART,...", help="of the suite; empty: all")
    option("--cache", type=Path, default=Path(".benchmarks"), help="environments and models")
    option("--output", type=Path, help="for JSON, pages and pictures (default: benchmarks/results)")
    option("--quick", action="store_true", help="tiny sizes: does everything run? No results by default")
    description = "; ".join(f"{name}: {', '.join(suite.named)}" for name, suite in suites.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=description, parents=[common], allow_abbrev=False
    )
    option = parser.add_argument
    option("suite", nargs="?", choices=suites, default=next(iter(suites)), help="(default: %(default)s)")
    option("--requests", type=_positive, default=100_000, metavar="N", help="serving, `memory` (default: 100,000)")
    option("--against", type=Path, metavar="PATH", help="serving, `against`: another checkout")
    option("--minutes", type=_positive, default=20, help="training: of measuring speed (default: 20)")
    option("--provider", choices=["cuda", "cpu"], default="cuda", help="gpu: where the graphs run")
    option("--budget-seconds", type=float, default=450.0, help="gpu: what is not measured by then is left out")
    options = parser.parse_args(arguments)
    # What makes the results: neither which parts nor where they are written.
    suite, own_options = suites[options.suite], common.parse_known_args(arguments)[1]
    suite.check(options)
    names = suite.chosen(options)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what was started is ended too
    # Where no terminal says how wide it is, lines are not folded to the usual 80.
    console = Console() if sys.stdout.isatty() else Console(width=FILE_WIDTH)
    workload = QUICK if options.quick else Workload()
    context = Context(workload=workload, cache=options.cache.resolve(), quick=options.quick, options=options)
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix="attendant-benchmarks-") as scratch:
        # Figures of a quick run are none: unless asked otherwise they are shown and left nowhere.
        output = options.output or Path(scratch if options.quick else "benchmarks/results")
        for name in names:
            machine, command = this_machine(), ["python", "-m", "benchmarks", *own_options, "--only", name]
            say(f"{name} ...")
            part = suite.named[name](context)
            title, _, about = (inspect.getdoc(suite.named[name]) or name).partition("\n\n")
            measured = Measured(
                title=title.rstrip("."), about=about, command=shlex.join(command), machine=machine, part=part
            )
            console.print(Markdown(f"# {measured.title}\n\n{markdown_table(part.columns, part.rows)}"))
            problems += part.problems
            # What is in the file by now: another command may have written its part meanwhile.
            parts = add_result(output / f"{options.suite}.json", name, measured)
            write_page(output / f"{options.suite}.md", suite.title, suite.about, parts)
            yardsticks = write_yardsticks(output)
        console.print(Markdown(yardsticks))
        if output != Path(scratch):
            say(f"written: {options.suite}.json, {options.suite}.md and yardsticks.md in {output}")
    if problems:
        raise VerificationFailed(f"{options.suite}: what was measured is not as it must be", problems)


def _positive(text: str) -> int:
    if int(text) <= 0:
        raise argparse.ArgumentTypeError(f"must be positive, got {text}")
    return int(text)
