"""python -m benchmarks.capacity measure|validate|plan COSTS.json: see --help and docs/scaling.md."""

import argparse
import json
import math
import signal
from collections.abc import Sequence
from pathlib import Path

from attendant.runtime.command import exit_command
from attendant.runtime.errors import UserError
from attendant.runtime.files import write_text
from benchmarks import ROOT
from benchmarks.capacity.costs import Costs, read_costs
from benchmarks.capacity.planning import p99, planned
from benchmarks.capacity.simulation import Lengths, Setting
from benchmarks.capacity.validation import COLUMNS, compared
from benchmarks.harness.results import Cell, Picture, draw, markdown_table
from benchmarks.workload import QUICK, Workload

LENGTHS = ROOT / "benchmarks" / "serving" / "lengths.json"
PICTURE_SHARES = (0.25, 0.5, 0.75, 1.0)
"""Of the rate that a plan gives a server, at which the picture has points."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capacity", description=__doc__, allow_abbrev=False)
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    measure = actions.add_parser("measure", help="write what an engine costs on this host, and how servers did there")
    measure.add_argument("costs", metavar="COSTS.json", type=Path)
    measure.add_argument("--cache", type=Path, default=Path(".benchmarks"), help="models and logs")
    measure.add_argument("--precision", choices=("int8", "fp32"), default="int8", help="(default: %(default)s)")
    measure.add_argument("--seconds", type=float, default=1.0, help="of each load and turn (default: %(default)g)")
    measure.add_argument("--quick", action="store_true", help="a tiny model: does everything run?")
    validate = actions.add_parser("validate", help="compare the simulation with how the servers did")
    plan = actions.add_parser("plan", help="say how many servers a load needs, and what it costs")
    for one in (validate, plan):
        one.add_argument("costs", metavar="COSTS.json", type=Path)
        one.add_argument(
            "--lengths",
            type=Path,
            default=LENGTHS,
            metavar="JSON",
            help="pairs of source positions and decoder steps (default: those of real sentences)",
        )
    plan.add_argument(
        "--rate", type=_positive, required=True, metavar="N", help="requests per second of the whole fleet"
    )
    plan.add_argument("--p99-ms", type=_positive, required=True, metavar="MS", help="bound of the 99th percentile")
    plan.add_argument(
        "--core-hour", type=_positive, default=0.04, metavar="PRICE", help="of a core (default: %(default)g)"
    )
    plan.add_argument("--beam-size", type=int, default=1, metavar="N", help="of all requests (default: %(default)s)")
    plan.add_argument("--workers", type=_numbers, default=(1, 2, 4, 8, 16), metavar="N,...", help="per server, to try")
    plan.add_argument("--max-rows", type=_numbers, default=(64, 256), metavar="N,...", help="per worker, to try")
    plan.add_argument("--picture", type=Path, metavar="SVG", help="p99 by rate of each server, at its best --max-rows")
    return parser


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: must be a number above 0")
    return number


def _numbers(text: str) -> tuple[int, ...]:
    numbers = tuple(map(int, text.split(",")))
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be numbers from 1")
    return numbers


def _lengths(path: Path) -> Lengths:
    try:
        return [(int(positions), int(steps)) for positions, steps in json.loads(path.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError) as error:
        raise UserError(
            f"--lengths {path}: must be a JSON list of [source positions, decoder steps]: {error}"
        ) from None


def run(arguments: Sequence[str] | None = None) -> None:
    """Raises UserError."""
    options = _parser().parse_args(arguments)
    if options.action == "measure":
        _measure(options)
    else:
        costs, lengths = read_costs(options.costs), _lengths(options.lengths)
        if options.action == "plan":
            _plan(options, costs, lengths)
        else:
            print(f"{costs.measured}\n\n{markdown_table(COLUMNS, compared(costs, lengths))}")


def _measure(options: argparse.Namespace) -> None:
    # The others need no torch, with which the benchmarks' model is made.
    from benchmarks.capacity.measuring import measured_costs  # noqa: PLC0415
    from benchmarks.command import Context  # noqa: PLC0415

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the servers are ended too
    workload = QUICK if options.quick else Workload()
    context = Context(workload=workload, cache=options.cache.resolve(), quick=options.quick)
    costs = measured_costs(context, options.precision, options.seconds)
    write_text(options.costs, costs.model_dump_json(indent=1) + "\n")


def _plan(options: argparse.Namespace, costs: Costs, lengths: Lengths) -> None:
    settings = [
        # A core more than workers: beside other servers on a large host, the process finds one that is free.
        Setting(num_workers=number, num_cores=number + 1, max_rows=max_rows, beam_size=options.beam_size)
        for number in options.workers
        for max_rows in options.max_rows
        if max_rows >= options.beam_size
    ]
    plans = planned(
        costs,
        settings,
        lengths,
        rate=options.rate,
        p99_seconds=options.p99_ms / 1e3,
        core_hour=options.core_hour,
    )
    if not plans:
        raise UserError(f"--p99-ms {options.p99_ms:g}: no such server answers within it, even at the lowest rate tried")
    plans.sort(key=lambda plan: plan.price)
    best = {plan.setting.num_workers: plan for plan in reversed(plans)}
    rows: list[list[Cell]] = [
        [
            f"--workers {number} --max-rows {plan.setting.max_rows}",
            plan.rate,
            plan.rate / number,
            f"{plan.num_servers:,}",
            plan.num_cores,
            plan.price,
        ]
        for number, plan in sorted(best.items())
    ]
    columns = ["server", "requests/s each", "per worker", "servers", "cores", "price of a million"]
    print(f"{costs.measured}\n\n{markdown_table(columns, rows)}")
    if options.picture:
        series = {
            f"{number} workers": [
                (share * plan.rate, 1e3 * p99(costs, plan.setting, lengths, share * plan.rate))
                for share in PICTURE_SHARES
            ]
            for number, plan in sorted(best.items())
        }
        title = "99th percentile by rate, simulated"
        file = options.picture.name
        draw(
            Picture(file=file, title=title, x_label="requests/s of a server", y_label="ms", series=series),
            options.picture,
        )


if __name__ == "__main__":
    exit_command("benchmarks.capacity", run)
