"""attendant evaluate PATH...: the options of `attendant.evaluate` and its tables, and --confidence."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, get_args

from rich.console import Console

from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.bundle.manifest import SEARCH_OPTIONS, Provider
from attendant.runtime.bundle_stepper import default_precision, open_stepper
from attendant.runtime.command import CommandParser, require
from attendant.runtime.errors import UserError
from attendant.runtime.files import READ_ONLY, write_json, write_text
from attendant.training.data.config import CorpusFiles
from attendant.training.data.lines import read_sources
from attendant.training.evaluation.bootstrap import DEFAULT_EDGES, DEFAULT_RESAMPLES, LengthUnit, interval_text
from attendant.training.evaluation.confidence import Measured, Reliability, measure_confidence
from attendant.training.evaluation.metrics import BleuTokenizer, MetricName
from attendant.training.evaluation.session import is_bundle
from attendant.training.library.evaluation import check_bootstrap, check_folder, chosen_data, evaluate, kept_by
from attendant.training.library.results import Results
from attendant.training.progress import counter, plain_console, plain_table, progress_bars

DESCRIPTION = """Decodes a test set and measures the outputs, each value with its 95 % interval by bootstrap resampling.
A run's values are also recorded in its evaluation.json. Several models are measured on the same data and compared with
the first. Several searches of one model (beam sizes, length penalties, patiences) are compared with the first of them:
choose with --split validation, and report one value on test. Defaults are those of the run's [evaluation], or of the
bundle."""
EDGES = ",".join(map(str, DEFAULT_EDGES))
OPTIONS_OF_METRICS: Final = (
    *("metrics", "bleu_tokenizer", "ignored_characters", "beam_size", "length_penalty", "length_penalty_offset"),
    *("patience", "max_length", "ensemble", "rescore", "checkpoint", "by_length", "length_unit", "outputs"),
)
"""Options that --confidence does not take: confidences are calibrated for answers by the bundle's defaults."""


def add_data_options(parser: argparse.ArgumentParser) -> None:
    data = parser.add_mutually_exclusive_group()
    data.add_argument("--split", choices=("test", "validation"), help="split to decode (default: test)")
    data.add_argument(
        "--data",
        metavar="FILE.tsv|SOURCE,TARGET",
        help="other data: a file of pairs, also FILE[COLUMN,COLUMN]; or two files with corresponding lines "
        "(docs/data.md)",
    )


def evaluate_parser() -> CommandParser:
    parser = CommandParser(prog="attendant evaluate", description=DESCRIPTION)
    add = parser.add_argument
    add("paths", type=Path, nargs="+", metavar="RUN|BUNDLE", help="a run directory or a bundle")
    add_data_options(parser)
    add("--metrics", metavar="NAME,...", help=f"metrics, from {', '.join(get_args(MetricName))}")
    tokenizers = ", ".join(get_args(BleuTokenizer))
    add("--bleu-tokenizer", metavar="NAME", help=f"tokenizer of BLEU: {tokenizers}")
    add(
        "--ignored-characters",
        metavar="TEXT",
        help="characters to remove from outputs and references before the comparison, e.g. 012: phones without stress",
    )
    add("--beam-size", "--beam-sizes", metavar="N,...", help="live hypotheses; 1: greedy; may have several values")
    add(
        "--length-penalty",
        "--length-penalties",
        metavar="ALPHA,...",
        help="log P is divided by ((K + length) / (K + 1)) ^ ALPHA; 0: off; may have several values",
    )
    add(
        "--length-penalty-offset",
        metavar="K,...",
        help="5 as in GNMT; 0: a power of the length; may have several values",
    )
    add("--patience", metavar="P,...", help="a beam ends when P times its size have ended; may have several values")
    add("--max-length", metavar="N", help="target tokens after which an output is cut")
    add("--ensemble", action="store_true", help="the runs decode together, by the mean of their probabilities")
    add(
        "--rescore",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="rank each beam's hypotheses by this run's probabilities, or by the mean of several runs'",
    )
    add("--checkpoint", choices=("best", "last"), help="a run's weights (default: best)")
    add("--precision", metavar="P,...", help="of a bundle's graphs; may have several values (default: the manifest's)")
    add("--provider", choices=get_args(Provider), help="device for a bundle (default: cpu)")
    add(
        "--bootstrap",
        type=int,
        default=DEFAULT_RESAMPLES,
        metavar="N",
        help="resamples for the intervals; 0: none (default: %(default)s)",
    )
    add(
        "--by-length",
        nargs="?",
        const=EDGES,
        metavar="N,...",
        help=f"also measure by the source's length, in bins that end at these values (without a value: {EDGES})",
    )
    add(
        "--length-unit",
        choices=get_args(LengthUnit),
        help="unit of lengths: words and punctuation marks, or tokens of the model's own tokenizer",
    )
    add("--output", type=Path, metavar="FILE.json", help="also write the results to this file")
    add("--outputs", type=Path, metavar="FILE.tsv", help="write every output, with its score, to this file")
    add("--json", action="store_true", help="print the results as JSON instead of tables")
    group = parser.add_argument_group("confidence", "of a bundle's answers by its defaults (docs/confidence.md)")
    group.add_argument(
        "--confidence",
        action="store_true",
        help="instead of metrics: measure how well the confidence of answers is calibrated, and how well it separates "
        "right answers from wrong ones",
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
    return parser


def run_evaluate(arguments: argparse.Namespace) -> None:
    written = {f"--{name}": path for name in ("output", "chart") if (path := getattr(arguments, name)) is not None}
    used = [*kept_by(arguments.paths), *_data_files(arguments), *arguments.foreign] if written else []
    for option, path in written.items():
        check_folder(option, path, used)
    for other in ("outputs", "chart"):
        if arguments.output is not None and arguments.output == getattr(arguments, other):
            raise UserError(f"--output and --{other} are both {arguments.output}: name two files")
    if arguments.confidence:
        measure_confidences(arguments)
        return
    for option in ("foreign", "chart"):
        if getattr(arguments, option):
            raise UserError(f"--{option} is for --confidence: give both, or none")
    same = ["data", "split", "bleu_tokenizer", "ignored_characters", "max_length", "ensemble", "checkpoint", "provider"]
    same += ["bootstrap", "length_unit", "outputs"]
    options: dict[str, Any] = {name: getattr(arguments, name) for name in same}
    for name in ("metrics", "precision", *SEARCH_OPTIONS):
        text = getattr(arguments, name)
        options[name] = None if text is None else text.split(",")
    by_length = None if arguments.by_length is None else _edges(arguments.by_length)
    rescore = arguments.rescore or ()
    with progress_bars() as progress:
        results = evaluate(arguments.paths, **options, rescore=rescore, by_length=by_length, progress=progress)
    show_results(results, as_json=arguments.json, output=arguments.output)


def _data_files(arguments: argparse.Namespace) -> tuple[Path, ...]:
    if arguments.data is not None:
        return CorpusFiles.named(arguments.data).paths
    runs = [path for path in arguments.paths if not is_bundle(path)]
    if not runs:
        return ()
    require("torch", "cpu,training")
    from attendant.training.run.loading import held_out_files  # noqa: PLC0415

    return held_out_files(runs[0], arguments.split or "test").paths


def show_results(results: Results, *, as_json: bool = False, output: Path | None = None) -> None:
    """Prints the results, then writes them: if the disk is full, they have been shown.

    Raises:
        CantWrite: `output` or a run's evaluation.json can't be written. A read-only run is measured without a record.
    """
    if as_json:
        print(json.dumps(results.to_json(), indent=2, sort_keys=True))
    else:
        plain_console().print(results)
    if output is not None:
        write_json(output, results.to_json())
    for refusal in results.unrecorded:
        if refusal.number not in READ_ONLY:
            raise refusal
        print(f"training: not recorded: {refusal}", file=sys.stderr)


def _edges(text: str) -> tuple[int, ...]:
    try:
        edges = tuple(map(int, text.split(",")))
    except ValueError:
        edges = ()
    if not edges or list(edges) != sorted({edge for edge in edges if edge > 0}):
        raise UserError(f"--by-length {text}: must be whole numbers that rise, e.g. {EDGES}; put paths before it")
    return edges


def measure_confidences(arguments: argparse.Namespace) -> None:
    """Measures bundles, and prints and writes the results.

    Raises:
        UserError: a path is a run; an option of metrics, or that can't be; no data; a bundle has no calibration.
    """
    for option in OPTIONS_OF_METRICS:
        if getattr(arguments, option):
            raise UserError(f"--{option.replace('_', '-')} is not for --confidence, which is of answers by default")
    if runs := [path for path in arguments.paths if not is_bundle(path)]:
        raise UserError(f"--confidence is of bundles, and {runs[0]} is a run: export it first")
    check_bootstrap(arguments.bootstrap)
    precisions = arguments.precision.split(",") if arguments.precision else [None]
    if arguments.chart is not None:
        if arguments.chart.suffix != ".svg":
            raise UserError(f"--chart {arguments.chart}: must end in .svg")
        if len(arguments.paths) * len(precisions) > 1:
            raise UserError("--chart draws one model in one precision: give one")
    data = chosen_data(arguments.data, arguments.split, ())
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
                    num_resamples=arguments.bootstrap,
                    progress=counter(progress, name, total),
                )
    _show_confidences(arguments, data.name, results)


def _show_confidences(arguments: argparse.Namespace, data_name: str, results: dict[str, Reliability]) -> None:
    """Prints the results, then writes them: if the disk is full, they have been shown."""
    document = {"data": data_name, "results": [{"model": name, **asdict(result)} for name, result in results.items()]}
    if arguments.json:
        print(json.dumps(document, indent=2, sort_keys=True))
    else:
        _print_confidences(data_name, results, arguments.bootstrap, plain_console())
    if arguments.output is not None:
        write_json(arguments.output, document)
    if arguments.chart is not None:
        # matplotlib, which a server's environment lacks.
        from attendant.training.report.pictures import on_paper, reliability_chart  # noqa: PLC0415

        write_text(arguments.chart, on_paper(reliability_chart(next(iter(results.values())))))


def _print_confidences(data_name: str, results: dict[str, Reliability], num_resamples: int, console: Console) -> None:
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
