"""attendant evaluate BUNDLE... --confidence: measures the confidence of bundles' answers."""

import argparse
import json
from pathlib import Path
from typing import Final

from rich.console import Console

from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.bundle.manifest import Provider
from attendant.runtime.bundle_stepper import default_precision, open_stepper
from attendant.runtime.errors import UserError
from attendant.runtime.files import write_json, write_text
from attendant.training.data.pairs import read_sources
from attendant.training.evaluation.bootstrap import interval_text
from attendant.training.evaluation.confidence import Measured, Reliability, measure_confidence
from attendant.training.evaluation.session import is_bundle, read_data
from attendant.training.library.evaluation import check_folder
from attendant.training.progress import counter, plain_console, plain_table, progress_bars

OTHER_OPTIONS: Final = (
    *("metrics", "bleu_tokenizer", "ignored_characters", "beam_size", "length_penalty", "length_penalty_offset"),
    *("patience", "max_length", "ensemble", "rescore", "checkpoint", "by_length", "length_unit", "outputs"),
)
"""Options of `evaluate` that confidences don't depend on: they are calibrated for answers by the bundle's defaults."""


def add_confidence_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("confidence", "of a bundle's answers by its defaults (docs/confidence.md)")
    group.add_argument(
        "--confidence",
        action="store_true",
        help="instead of metrics: how well the confidence of answers is calibrated, and whether it tells right answers "
        "from wrong ones",
    )
    group.add_argument(
        "--foreign",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="with --confidence: texts of another domain, one a line, of which no answer counts as right; may be "
        "repeated",
    )
    group.add_argument(
        "--chart", type=Path, metavar="FILE.svg", help="with --confidence: draw the reliability diagram here"
    )


def refuse_without_confidence(arguments: argparse.Namespace) -> None:
    """Raises UserError if an option is given that has an effect only with --confidence."""
    for option in ("foreign", "chart"):
        if getattr(arguments, option):
            raise UserError(f"--{option} is for --confidence: give both, or none")


def measure_confidences(arguments: argparse.Namespace) -> None:
    """Measures bundles, and prints and writes the results.

    Raises:
        UserError: a path is a run; an option of metrics is given; no data; a bundle has no calibration.
    """
    for option in OTHER_OPTIONS:
        if getattr(arguments, option):
            raise UserError(f"--{option.replace('_', '-')} is not for --confidence, which is of answers by default")
    if runs := [path for path in arguments.paths if not is_bundle(path)]:
        raise UserError(f"--confidence is of bundles, and {runs[0]} is a run: export it first")
    precisions = arguments.precision.split(",") if arguments.precision else [None]
    if arguments.chart is not None:
        check_folder("--chart", arguments.chart)
        if len(arguments.paths) * len(precisions) > 1:
            raise UserError("--chart draws one model in one precision: give one")
    if arguments.data is None:
        raise UserError(f"the bundle {arguments.paths[0]} knows of no {arguments.split} split: give --data FILE.tsv")
    data = read_data(arguments.data)
    foreign = [(str(path), read_sources(path)) for path in arguments.foreign]
    total = len(data.examples) + sum(len(texts) for _, texts in foreign)
    provider: Provider = arguments.provider or "cpu"
    results: dict[str, Reliability] = {}
    with progress_bars() as progress:
        for path in arguments.paths:
            bundle = open_bundle(path)
            for precision in precisions:
                stepper = open_stepper(bundle, precision or default_precision(bundle, provider), provider)
                name = f"{path}, {stepper.precision} on {provider}"
                results[name] = measure_confidence(
                    bundle,
                    stepper,
                    data.examples,
                    foreign,
                    num_resamples=max(0, arguments.bootstrap),
                    progress=counter(progress, name, total),
                )
    _output(arguments, data.name, results)


def _output(arguments: argparse.Namespace, data_name: str, results: dict[str, Reliability]) -> None:
    """Prints the results before it writes them: the disk may be full."""
    document = {
        "data": data_name,
        "results": [{"model": name, **result.to_json()} for name, result in results.items()],
    }
    if arguments.json:
        print(json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False))
    else:
        _show(data_name, results, arguments.bootstrap, plain_console())
    if arguments.output is not None:
        write_json(arguments.output, document)
    if arguments.chart is not None:
        # matplotlib, which a server's environment lacks.
        from attendant.training.report.pictures import on_paper, reliability_chart  # noqa: PLC0415

        write_text(arguments.chart, on_paper(reliability_chart(next(iter(results.values())))))


def _show(data_name: str, results: dict[str, Reliability], num_resamples: int, console: Console) -> None:
    intervals = f"; 95 % intervals from {num_resamples:,} resamples" if num_resamples else ""
    for name, result in results.items():
        console.print(f"{name}\n{result.num_examples:,} examples: {data_name}{intervals}")
        console.print(f"right: {result.rule}; a warning below a confidence of {result.warn_below:.2f}")
        values = plain_table("", "value >", "95 % interval >")
        for title, measured in (
            ("right answers", result.share_right),
            ("expected calibration error", result.ece),
            ("AUROC, right or wrong", result.auroc),
            ("answers with a warning", result.warned),
            ("wrong answers with a warning", result.warned_of_wrong),
        ):
            values.add_row(title, *_cells(measured))
        console.print(values)
        bins = plain_table("confidence", "answers >", "mean >", "right >", "95 % interval >")
        for each in result.bins:
            span = f"{each.low:.1f} to {each.high:.1f}"
            bins.add_row(span, f"{each.num_answers:,}", f"{each.confidence:.3f}", *_cells(each.share_right))
        console.print(bins)
        if result.foreign:
            table = plain_table(
                "other domain", "inputs >", "mean confidence >", "warned >", "95 % interval >", "AUROC >", "interval >"
            )
            for inputs in result.foreign:
                counts = (inputs.name, f"{inputs.num_inputs:,}", f"{inputs.confidence:.3f}")
                table.add_row(*counts, *_cells(inputs.warned), *_cells(inputs.auroc))
            console.print(table)
        console.print()


def _cells(measured: Measured) -> tuple[str, str]:
    value = "-" if measured.value is None else f"{measured.value:.3f}"
    return value, interval_text(measured.interval, 3)
