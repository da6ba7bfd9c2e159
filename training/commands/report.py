"""attendant report RUN...: what came of a training, or of several, as one page."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from attendant.runtime.errors import UserError
from attendant.training.assessment.models import is_bundle
from attendant.training.assessment.runs import read_chosen
from attendant.training.commands.options import add_data_options, check_folder
from attendant.training.evaluation.lengths import LengthUnit

DESCRIPTION = """Measures runs on held-out data and shows them: learning curves, quality by source length, how far back
in time gradients reach, attention, the best and the worst outputs, recipe and data. Several runs are compared with the
first, in the same pictures. Each decodes by its recipe's [evaluation]; all are measured by the first one's metrics."""
DEFAULT_NAME = "report.html"


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="attendant report", description=DESCRIPTION)
    found.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a run directory")
    found.add_argument(
        "--output",
        type=Path,
        action="append",
        metavar="FILE",
        help="FILE.html: one page that needs nothing else; FILE.md: Markdown, its pictures in FILE_pictures/ beside "
        f"it; may be repeated (default: {DEFAULT_NAME} in the run directory; with several runs it must be given)",
    )
    add_data_options(found)
    found.add_argument(
        "--examples",
        default="3",
        metavar="FILE|N",
        help="whose attention is shown beside the worst ones': a file of sources, one per line, a reference after a "
        "tab if you like; or that many, at even distances in the data (default: %(default)s)",
    )
    found.add_argument(
        "--length-unit",
        choices=get_args(LengthUnit),
        help="what lengths are counted in (default: words; tokens where sources are mostly one word or two)",
    )
    return found


def run(arguments: argparse.Namespace) -> None:
    # Imported here: drawing takes long to load, and no other command draws.
    from attendant.training.report.composing import compose  # noqa: PLC0415
    from attendant.training.report.findings.examples import choose_examples  # noqa: PLC0415
    from attendant.training.report.findings.measuring import MAX_RUNS, measure_runs  # noqa: PLC0415
    from attendant.training.report.page.writing import check_form, write_report  # noqa: PLC0415

    if len(arguments.runs) > MAX_RUNS:
        raise UserError(f"{len(arguments.runs)} runs: a report compares at most {MAX_RUNS}")
    for path in arguments.runs:
        if is_bundle(path):
            raise UserError(f"{path} is a bundle: a report is of a run, which has the training's journal and weights")
    outputs = _outputs(arguments)
    for path in outputs:
        check_form(path)
        check_folder("--output", path)
    data = read_chosen(arguments.data, arguments.runs, arguments.split)
    measured = measure_runs(
        arguments.runs,
        data,
        choose_examples(arguments.examples, data.examples),
        length_unit=arguments.length_unit,
    )
    report = compose(measured, data.name)
    for path in outputs:
        write_report(report, path)
        print(path)


def _outputs(arguments: argparse.Namespace) -> Sequence[Path]:
    if arguments.output:
        return list(arguments.output)
    if len(arguments.runs) > 1:
        raise UserError(f"a report of {len(arguments.runs)} runs belongs to none of them: give --output FILE.html")
    return [arguments.runs[0] / DEFAULT_NAME]
