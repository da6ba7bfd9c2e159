"""The commands of the benchmarks: which parts to run, with which options, and where the results go."""

import argparse
import inspect
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from attendant.runtime.command import exit_command
from attendant.runtime.errors import UserError
from benchmarks.harness.machine import this_machine
from benchmarks.harness.pages import print_table, write_page
from benchmarks.harness.results import Measured, Part, Results
from benchmarks.mt import mt_bundle
from benchmarks.workload import QUICK, Workload
from benchmarks.yardsticks import COLUMNS, write_yardsticks, yardstick_rows

NUM_ROUNDS = 5
VISIT_SECONDS = 1.5
FILE_WIDTH = 170


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a part is run with.

    Attributes:
        cache: environments, models and logs, kept between runs.
        quick: so little that it says nothing but that everything runs.
        options: the command's own.
    """

    workload: Workload
    cache: Path
    quick: bool = False
    options: argparse.Namespace = field(default_factory=argparse.Namespace)

    @property
    def bundle(self) -> Path:
        """The bundle of the workload's sizes; made at the first use."""
        return mt_bundle(self.workload, self.cache)

    @property
    def num_rounds(self) -> int:
        return 1 if self.quick else NUM_ROUNDS

    @property
    def visit_seconds(self) -> float:
        return 0.1 if self.quick else VISIT_SECONDS

    def say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A command's parts.

    Attributes:
        name: of the results' files.
        about: Markdown, on top of the page; its first paragraph explains the command, too.
        parts: functions whose docstrings stand on the page: title, then what the table shows and how it was measured.
        add_options: declares the command's own options.
        choose: checks them and returns the parts that run where --only names none. Raises UserError.
    """

    command: str
    name: str
    title: str
    about: str
    parts: Mapping[str, Callable[[Context], Part]]
    add_options: Callable[[argparse.ArgumentParser], None] = lambda parser: None
    choose: Callable[[argparse.Namespace], Sequence[str]] | None = None

    def write(self, results: Results, output: Path) -> None:
        """The suite's page and pictures, and the page of the yardsticks, which are of all suites."""
        write_page(output / f"{self.name}.md", self.title, self.about, results.parts)
        write_yardsticks(output)


def run_suite(suite: Suite, arguments: Sequence[str] | None = None) -> dict[str, Part]:
    """Runs what the command line asks for, writes each part as soon as it stands, and returns all of them.

    Raises:
        UserError: an option that makes no sense.
    """
    given = sys.argv[1:] if arguments is None else arguments
    common = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    common.add_argument("--only", default="", metavar="PART,...", help=f"of {', '.join(suite.parts)}; empty: all")
    common.add_argument("--cache", type=Path, default=Path(".benchmarks"), help="environments, models and logs")
    common.add_argument("--output", type=Path, default=Path("benchmarks/results"), help="for JSON, pages and pictures")
    common.add_argument("--quick", action="store_true", help="tiny sizes: does everything run? Writes no results")
    parser = argparse.ArgumentParser(
        prog=f"python -m {suite.command}",
        description=suite.about.partition("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        parents=[common],
        allow_abbrev=False,
    )
    suite.add_options(parser)
    options = parser.parse_args(given)
    own_options = common.parse_known_args(given)[1]
    chosen = suite.choose(options) if suite.choose is not None else list(suite.parts)
    names = [name for name in options.only.split(",") if name] or chosen
    for name in names:
        if name not in suite.parts:
            raise UserError(f"--only: there is no part {name!r}; there are {', '.join(suite.parts)}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what was started is ended too
    # Where no terminal says how wide it is, lines are not folded to the usual 80.
    console = Console() if sys.stdout.isatty() else Console(width=FILE_WIDTH)
    workload = QUICK if options.quick else Workload()
    context = Context(workload=workload, cache=options.cache.resolve(), quick=options.quick, options=options)
    parts: dict[str, Part] = {}
    with tempfile.TemporaryDirectory(prefix="attendant-benchmarks-") as scratch:
        # Figures of a quick run are none: they are shown and left nowhere.
        output = Path(scratch) if options.quick else options.output
        for name in names:
            command = shlex.join(["python", "-m", suite.command, "--only", name, *own_options])
            machine = this_machine()
            context.say(f"{name} ...")
            part = parts[name] = suite.parts[name](context)
            title, _, about = (inspect.getdoc(suite.parts[name]) or name).partition("\n\n")
            measured = Measured(title=title.rstrip("."), about=about, command=command, machine=machine, part=part)
            print_table(measured.title, part.columns, part.rows, console)
            # Read again: another command may have written its part meanwhile.
            results = Results(output / f"{suite.name}.json")
            results.add(name, measured)
            suite.write(results, output)
        print_table("Yardsticks", COLUMNS, yardstick_rows(output), console)
        if not options.quick:
            context.say(f"written: {output}/{suite.name}.json, {suite.name}.md and yardsticks.md")
    return parts


def exit_suite(suite: Suite) -> NoReturn:
    """`run_suite` as a process's only work."""

    def main() -> None:
        run_suite(suite)

    exit_command(suite.command, main)
