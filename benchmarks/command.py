"""The commands of the benchmarks: which parts to run, how long, and where the results go."""

import argparse
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from attendant.runtime.errors import UserError
from benchmarks.mt import mt_bundle
from benchmarks.pictures import draw
from benchmarks.results import Measured, Part, Results
from benchmarks.tables import page, print_part, print_table
from benchmarks.training.machine import this_machine
from benchmarks.training.workload import QUICK, Workload
from benchmarks.yardsticks import COLUMNS, yardstick_rows, yardsticks_page

NUM_ROUNDS = 5
VISIT_SECONDS = 1.5
FILE_WIDTH = 170


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a part is run with.

    Attributes:
        cache: environments, models and logs, kept between runs.
        quick: so little that it says nothing but that everything runs.
        num_requests: of the memory part.
    """

    workload: Workload
    cache: Path
    quick: bool
    num_requests: int
    say: Callable[[str], None]

    @property
    def bundle(self) -> Path:
        """The bundle of the workload's sizes; made at the first use."""
        return mt_bundle(self.workload, self.cache)

    def of_sizes(self, workload: Workload) -> "Context":
        """The same, with a model of other sizes."""
        return replace(self, workload=workload)

    @property
    def num_rounds(self) -> int:
        return 1 if self.quick else NUM_ROUNDS

    @property
    def visit_seconds(self) -> float:
        return 0.1 if self.quick else VISIT_SECONDS


RunPart = Callable[[Context], Part]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A command's parts.

    Attributes:
        name: of the results' files.
    """

    command: str
    name: str
    title: str
    about: str
    parts: Mapping[str, RunPart]


def run_suite(suite: Suite) -> None:
    """Runs what the command line asks for and writes each part as soon as it stands.

    Raises:
        UserError: an option that makes no sense.
    """
    arguments = _parser(suite).parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what was started is ended too
    names = [name for name in arguments.only.split(",") if name] or list(suite.parts)
    for name in names:
        if name not in suite.parts:
            raise UserError(f"--only: there is no part {name!r}; there are {', '.join(suite.parts)}")
    if arguments.requests <= 0:
        raise UserError(f"--requests must be positive, got {arguments.requests}")
    # Where no terminal says how wide it is, lines are not folded to the usual 80.
    console = Console() if sys.stdout.isatty() else Console(width=FILE_WIDTH)
    context = Context(
        workload=QUICK if arguments.quick else Workload(),
        cache=arguments.cache.resolve(),
        quick=arguments.quick,
        num_requests=arguments.requests,
        say=_say,
    )
    with tempfile.TemporaryDirectory(prefix="attendant-benchmarks-") as scratch:
        # Figures of a quick run are none: they are shown and left nowhere.
        output = Path(scratch) if arguments.quick else arguments.output
        for name in names:
            command = f"python -m {suite.command} --only {name}" + _other_options()
            machine = this_machine()
            _say(f"{name} ...")
            part = suite.parts[name](context)
            print_part(part, console)
            # Read again: another command may have written its part meanwhile.
            results = Results(output / f"{suite.name}.json")
            results.add(name, Measured(part=part, command=command, machine=machine))
            write_pages(suite, results, output)
        print_table("Yardsticks", COLUMNS, yardstick_rows(output), console)
        if not arguments.quick:
            _say(f"written: {output}/{suite.name}.json, {suite.name}.md and yardsticks.md")


def write_pages(suite: Suite, results: Results, output: Path) -> None:
    """The suite's page and pictures, and the page of the yardsticks, which are of all suites."""
    for measured in results.parts.values():
        for picture in measured.part.pictures:
            draw(picture, output / picture.file)
    (output / f"{suite.name}.md").write_text(page(suite.title, suite.about, results.parts), encoding="utf-8")
    (output / "yardsticks.md").write_text(yardsticks_page(output), encoding="utf-8")


def _parser(suite: Suite) -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog=f"python -m {suite.command}",
        description=suite.about,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    found.add_argument("--only", default="", metavar="PART,...", help=f"of {', '.join(suite.parts)}; empty: all")
    found.add_argument("--cache", type=Path, default=Path(".benchmarks"), help="environments, models and logs")
    found.add_argument("--output", type=Path, default=Path("benchmarks/results"), help="for JSON, pages and pictures")
    found.add_argument("--requests", type=int, default=100_000, metavar="N", help="of the part `memory`")
    found.add_argument("--quick", action="store_true", help="tiny sizes: does everything run? Writes no results")
    return found


def _other_options() -> str:
    """What was said of --requests: it changes what is measured."""
    given = sys.argv[1:]
    return next((f" {shlex.join(given[i : i + 2])}" for i, one in enumerate(given) if one == "--requests"), "")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
