"""python -m benchmarks: how fast Attendant decodes, serves and trains, compared with its peers."""

import inspect
import shlex
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from attendant.runtime.command import CommandParser, exit_command
from attendant.runtime.errors import UserError
from benchmarks import decoding, gpu, own_models, peers, serving, training
from benchmarks.harness import log_line
from benchmarks.results import Measured, Part, add_result, markdown_table, this_machine, write_page
from benchmarks.workload import QUICK, Context, Workload


@dataclass(frozen=True, slots=True)
class Suite:
    """Parts whose results are on one page.

    Attributes:
        about: Markdown at the top of the page.
        parts: functions whose docstrings are on the page: the title, then the table's content and its method.
    """

    title: str
    about: str
    parts: Sequence[Callable[[Context], Part]]

    @property
    def by_name(self) -> dict[str, Callable[[Context], Part]]:
        return {part.__name__.replace("_", "-"): part for part in self.parts}


SUITES = {
    "serving": Suite(
        "Speed of decoding and serving",
        "Each part is measured on an otherwise idle machine.",
        (
            *(decoding.decoding, decoding.alone, serving.first_token, serving.overhead, serving.request_time),
            *(serving.open_loop, serving.priority, decoding.against),
        ),
    ),
    "peers": Suite(
        "Attendant and its peers",
        "The peers are installed from PyPI into separate environments, which are kept. A peer that can't be "
        "installed or fails keeps its row, with the reason.",
        (
            *(peers.greedy, peers.beam, peers.single),
            *(peers.served, peers.real_lengths, peers.arrivals, peers.pronunciation),
        ),
    ),
    "own": Suite(
        "Users' own models",
        "Modules exported by `attendant.export_model`. Each part is measured on an otherwise idle machine.",
        (own_models.students,),
    ),
    "training": Suite("Training speed", training.ABOUT, (training.input_feeding, training.no_input_feeding)),
    "gpu": Suite(
        "Decoding on a GPU",
        "The time of a step against PyTorch, and the server against itself on the CPU.",
        (gpu.greedy, gpu.beam, gpu.served),
    ),
}


def run(suites: Mapping[str, Suite], arguments: Sequence[str]) -> None:
    """Runs the chosen parts of a suite (by default the first), and writes the results of each as soon as it ends.

    Raises:
        UserError: a bad option.
    """
    description = "; ".join(f"{name}: {', '.join(suite.by_name)}" for name, suite in suites.items())
    parser = CommandParser(prog="python -m benchmarks", description=description)
    option = parser.add_argument
    option("suite", nargs="?", choices=suites, default=next(iter(suites)), help="(default: %(default)s)")
    option("--only", default="", metavar="PART,...", help="of the suite (default: all)")
    option("--cache", type=Path, default=Path(".benchmarks"), help="environments and models")
    option("--output", type=Path, help="for JSON, pages and pictures (default: benchmarks/results)")
    option("--quick", action="store_true", help="tiny sizes, to see that everything runs; writes no results by default")
    option("--against", type=Path, metavar="PATH", help="serving, `against`: another checkout")
    option("--minutes", type=float, default=20, help="training: of measuring speed (default: 20)")
    option("--provider", choices=["cuda", "cpu"], default="cuda", help="gpu: where the graphs run")
    options = parser.parse_args(arguments)
    suite = suites[options.suite]
    others = [name for name in suite.by_name if name != "against"]
    names = options.only.split(",") if options.only else ["against"] if options.against else others
    if unknown := set(names) - set(suite.by_name):
        raise UserError(f"--only: there is no part {min(unknown)!r}; there are {', '.join(suite.by_name)}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the started processes, as Ctrl-C does
    workload = QUICK if options.quick else Workload()
    context = Context(workload=workload, cache=options.cache.resolve(), quick=options.quick, options=options)
    output = options.output or (None if options.quick else Path("benchmarks/results"))
    command = shlex.join(["python", "-m", "benchmarks", *arguments])
    for name in names:
        machine = this_machine()
        log_line(f"{name} ...")
        part = suite.by_name[name](context)
        title, _, about = (inspect.getdoc(suite.by_name[name]) or name).partition("\n\n")
        measured = Measured(title=title.rstrip("."), about=about, command=command, machine=machine, part=part)
        print(f"# {measured.title}\n\n{markdown_table(part.columns, part.rows)}\n", flush=True)
        if output is not None:
            # The file is read again: another command may have written its part meanwhile.
            parts = add_result(output / f"{options.suite}.json", name, measured)
            write_page(output / f"{options.suite}.md", suite.title, suite.about, parts)
            log_line(f"written: {options.suite}.json and {options.suite}.md in {output}")


if __name__ == "__main__":
    exit_command("benchmarks", lambda: run(SUITES, sys.argv[1:]))
