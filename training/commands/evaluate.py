"""attendant evaluate PATH...: measures runs and bundles with the decoder that serves.

PyTorch is imported inside functions and for runs only: a server's environment, where bundles are, does not have it.
"""

import argparse
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from attendant.runtime.bundle.manifest import SEARCH_OPTIONS, Precision, Provider
from attendant.runtime.errors import UserError
from attendant.runtime.files import READ_ONLY, CantWrite, write_json
from attendant.training.data.config import CorpusFiles
from attendant.training.evaluation.bootstrap import DEFAULT_EDGES, DEFAULT_RESAMPLES, LengthUnit, interval_text
from attendant.training.evaluation.evaluating import Evaluation, EvaluationConfig, describe_search
from attendant.training.evaluation.metrics import BleuTokenizer, MetricName
from attendant.training.evaluation.session import (
    EvaluationData,
    OpenedModel,
    Result,
    Session,
    is_bundle,
    open_bundle_model,
    outputs_file,
    read_data,
)
from attendant.training.progress import plain_console, plain_table, progress_bar
from attendant.training.table import problems_of, requirement

DESCRIPTION = """Decodes a test set and measures the outputs, each value with its 95 % interval by bootstrap resampling.
A run's values are recorded in its evaluation.json too. Several models are measured on the same data and compared with
the first, several searches of one model (beam sizes, length penalties, patiences) with the first of those: choose by
--split validation, and report one value on test. What is not given is the run's [evaluation], or the bundle's own."""
EDGES = ",".join(map(str, DEFAULT_EDGES))


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """Adds --split and --data, for `read_chosen`."""
    data = parser.add_mutually_exclusive_group()
    data.add_argument("--split", choices=("test", "validation"), default="test", help="which split (default: test)")
    data.add_argument(
        "--data",
        metavar="FILE.tsv|SOURCE,TARGET",
        help="other data: a file of pairs, also FILE[COLUMN,COLUMN]; or two files whose lines correspond "
        "(docs/data.md)",
    )


def read_chosen(arguments: argparse.Namespace, runs: Sequence[Path]) -> EvaluationData:
    """Reads the data that --data or --split names. Raises UserError: there are no such data."""
    if arguments.data is not None:
        return read_data(CorpusFiles.named(arguments.data))
    from attendant.training.run.loading import read_held_out  # noqa: PLC0415

    return read_held_out(runs, arguments.split)


def check_folder(option: str, path: Path) -> None:
    """Raises UserError, before anything is decoded: the directory of a file to write is missing."""
    if not path.parent.is_dir():
        raise UserError(f"{option} {path}: there is no directory {path.parent}: make it first")


def evaluate_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="attendant evaluate", description=DESCRIPTION)
    add = parser.add_argument
    add("paths", type=Path, nargs="+", metavar="RUN|BUNDLE", help="a directory of training or export")
    add_data_options(parser)
    add("--metrics", metavar="NAME,...", help=f"of {', '.join(get_args(MetricName))}")
    tokenizers = ", ".join(get_args(BleuTokenizer))
    add("--bleu-tokenizer", metavar="NAME", help=f"what cuts texts into BLEU's words: {tokenizers}")
    add("--beam-size", "--beam-sizes", metavar="N,...", help="live hypotheses; 1 is greedy; several: each of them")
    add(
        "--length-penalty",
        "--length-penalties",
        metavar="ALPHA,...",
        help="log P is divided by ((K + length) / (K + 1)) ^ ALPHA; 0: by nothing; several likewise",
    )
    add("--length-penalty-offset", metavar="K,...", help="5: GNMT's; 0: the length's own power; several likewise")
    add("--patience", metavar="P,...", help="a beam ends when P times its size have ended; several likewise")
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
    add("--precision", metavar="P,...", help="of a bundle's graphs; several: each (default: the manifest's)")
    add("--provider", choices=get_args(Provider), help="what runs a bundle (default: cpu)")
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
        help=f"measure by the source's length too, in bins that end there (without a value: {EDGES})",
    )
    add(
        "--length-unit",
        choices=get_args(LengthUnit),
        help="counted in words and punctuation marks, or in tokens of the model's own tokenizer",
    )
    add("--output", type=Path, metavar="FILE.json", help="write the results here too")
    add("--outputs", type=Path, metavar="FILE.tsv", help="write every output here, with its score")
    add("--json", action="store_true", help="print the results as JSON instead of tables")
    return parser


def run_evaluate(arguments: argparse.Namespace) -> None:
    bundles = {path for path in arguments.paths if is_bundle(path)}
    precisions = arguments.precision.split(",") if arguments.precision else [None]
    _check(arguments, bundles, precisions)
    searches = list(_searches(arguments))
    for search in searches:
        _config(EvaluationConfig(), search)  # refuses a mistake before anything is loaded
    runs = [path for path in arguments.paths if path not in bundles]
    if arguments.data is None and not runs:
        raise UserError(f"the bundle {arguments.paths[0]} knows of no {arguments.split} split: give --data FILE.tsv")
    data = read_chosen(arguments, runs)
    rescorer = _open_runs(arguments.rescore, "--rescore") if arguments.rescore is not None else None
    paths = arguments.paths[:1] if arguments.ensemble else arguments.paths
    models = [(path, precision) for path in paths for precision in (precisions if path in bundles else [None])]
    writing = nullcontext() if arguments.outputs is None else outputs_file(arguments.outputs)
    results: list[Result] = []
    unrecorded: dict[Path, CantWrite] = {}
    with writing as outputs, progress_bar() as progress:
        session = Session(
            data=data,
            num_resamples=arguments.bootstrap,
            progress=progress,
            outputs=outputs,
            rescorer=None if rescorer is None else rescorer.model,
        )
        for path, precision in models:
            opened = _open(arguments, path, precision, rescorer, is_run=path not in bundles)
            for place, search in enumerate(searches):
                if len(models) == 1:
                    baseline = results[0] if results else None
                else:
                    baseline = results[place] if len(results) >= len(searches) else None
                config = _config(opened.config, search)
                if opened.max_beam_size is not None and config.beam_size > opened.max_beam_size:
                    raise UserError(f"--beam-size {config.beam_size}: {path} allows at most {opened.max_beam_size}")
                if rescorer is not None and config.beam_size == 1:
                    raise UserError(
                        "--rescore: greedy search has one hypothesis, which needs no order: give --beam-size 4, say"
                    )
                results.append(session.evaluate(opened, config, baseline))
                is_single_run = path not in bundles and not arguments.ensemble and rescorer is None
                if is_single_run and (refusal := _record(path, results[-1])):
                    unrecorded[path] = refusal
    _output(arguments, results, data.name)
    for refusal in unrecorded.values():
        # A read-only run is measured without a record.
        if refusal.number not in READ_ONLY:
            raise refusal
        print(f"training: not recorded: {refusal}", file=sys.stderr)


def _output(arguments: argparse.Namespace, results: Sequence[Result], data_name: str) -> None:
    """Prints the results before it writes them: the disk may be full."""
    document = {"data": data_name, "results": [result.to_json() for result in results]}
    if arguments.json:
        print(json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False))
    else:
        _show(results, data_name, plain_console())
    if arguments.output is not None:
        write_json(arguments.output, document)


def _record(path: Path, result: Result) -> CantWrite | None:
    """Adds the measurements to the run's own list; returns the error if it can't be written."""
    from attendant.training.run.directory import Run  # noqa: PLC0415

    try:
        Run(path).record_evaluations([measurement.to_json() for measurement in result.evaluation.measurements])
    except CantWrite as refusal:
        return refusal
    return None


def _open_runs(paths: Sequence[Path], option: str, checkpoint: str = "best") -> OpenedModel:
    from attendant.training.run.loading import open_runs  # noqa: PLC0415

    return open_runs(paths, option, checkpoint)


def _open(
    arguments: argparse.Namespace,
    path: Path,
    precision: Precision | None,
    rescorer: OpenedModel | None,
    *,
    is_run: bool,
) -> OpenedModel:
    """Opens a model; its name contains the rescorer. Raises UserError: the rescorer has other tokenizers."""
    if is_run:
        paths = arguments.paths if arguments.ensemble else [path]
        opened = _open_runs(paths, "--ensemble", arguments.checkpoint or "best")
    else:
        opened = open_bundle_model(path, precision, arguments.provider or "cpu")
    if rescorer is None:
        return opened
    for side in ("source_tokenizer", "target_tokenizer"):
        if getattr(opened.model, side).to_text() != getattr(rescorer.model, side).to_text():
            raise UserError(f"--rescore {rescorer.path}: has another {side} than {opened.path}: train both with one")
    return replace(opened, variant=", ".join(filter(None, (opened.variant, f"rescored by {rescorer.name}"))))


def _check(arguments: argparse.Namespace, bundles: set[Path], precisions: Sequence[str | None]) -> None:
    """Refuses options that would have no effect, and mistakes that would show only after decoding."""
    for option in ("precision", "provider"):
        value = getattr(arguments, option)
        if value is not None and not bundles:
            raise UserError(f"--{option} {value}: is for bundles, and {arguments.paths[0]} is a run: export it first")
    if arguments.ensemble and (bundles or len(arguments.paths) < 2):
        what = f"{next(iter(bundles))} is a bundle" if bundles else "there is one"
        raise UserError(f"--ensemble: is of two runs or more, and {what}")
    for precision in precisions:
        if precision is not None and precision not in get_args(Precision):
            raise UserError(f"--precision {precision}: must be of {', '.join(get_args(Precision))}")
    if arguments.checkpoint is not None and bundles.issuperset(arguments.paths):
        raise UserError(f"--checkpoint {arguments.checkpoint}: is for runs; a bundle has the weights it was made of")
    if arguments.bootstrap < 0:
        raise UserError(
            f"--bootstrap {arguments.bootstrap}: must be 0 (no intervals) or more, e.g. {DEFAULT_RESAMPLES}"
        )
    for option in ("output", "outputs"):
        path = getattr(arguments, option)
        if path is not None:
            check_folder(f"--{option}", path)


def _edges(text: str) -> tuple[int, ...]:
    try:
        edges = tuple(map(int, text.split(",")))
    except ValueError:
        edges = ()
    if not edges or list(edges) != sorted({edge for edge in edges if edge > 0}):
        raise UserError(f"--by-length {text}: must be whole numbers that rise, e.g. {EDGES}; paths stand before it")
    return edges


def _searches(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields the changes to a model's own configuration, for each search that the options name."""
    common = {
        "metrics": arguments.metrics.split(",") if arguments.metrics else None,
        "bleu_tokenizer": arguments.bleu_tokenizer,
        "max_length": arguments.max_length,
        "length_edges": None if arguments.by_length is None else _edges(arguments.by_length),
        "length_unit": arguments.length_unit,
    }
    choices = [values.split(",") if (values := getattr(arguments, name)) else [None] for name in SEARCH_OPTIONS]
    done = set()
    for values in itertools.product(*choices):
        beam_size, penalty, _, patience = values
        # Greedy search has one hypothesis: no penalty can rank others, and no patience wait for them. Without a penalty
        # its offset changes nothing.
        effective = (beam_size,) if beam_size == "1" else (beam_size, patience) if penalty == "0" else values
        if effective not in done:
            done.add(effective)
            search = common | dict(zip(SEARCH_OPTIONS, values, strict=True))
            yield {name: value for name, value in search.items() if value is not None}


def _config(own: EvaluationConfig, search: dict[str, Any]) -> EvaluationConfig:
    try:
        return EvaluationConfig.model_validate(own.model_dump() | search)
    except ValidationError as error:
        problem = problems_of(error)[0]
        option = str(problem["loc"][0]).replace("_", "-")
        raise UserError(f"--{option} {problem['input']}: {requirement(problem)}") from None


def _show(results: Sequence[Result], data_name: str, console: Console) -> None:
    """Prints every measurement, the differences to the first model, and the bins of lengths."""
    first = results[0].evaluation
    resamples = first.measurements[0].num_resamples
    intervals = f"; 95 % intervals from {resamples:,} resamples of them" if resamples else ""
    console.print(f"{first.num_examples:,} examples: {data_name}{intervals}")
    values = plain_table("model", "search", "metric", "value >", "95 % interval >", "examples/s >")
    differences = plain_table("model", "search", "metric", "difference >", "95 % interval >", "p >")
    for result in results:
        names = (result.model, describe_search(result.evaluation.options))
        per_second = result.examples_per_second
        rate = f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.1f}"
        for measurement in result.evaluation.measurements:
            value, interval = f"{measurement.value:.2f}", interval_text(measurement.interval)
            values.add_row(*names, measurement.metric, value, interval, rate)
            names, rate = ("", ""), ""
        names = (result.model, describe_search(result.evaluation.options))
        for difference in result.differences:
            value, interval = f"{difference.value:+.2f}", interval_text(difference.interval)
            p_value = "" if difference.p_value is None else f"{difference.p_value:.3f}"
            differences.add_row(*names, difference.metric, value, interval, p_value)
            names = ("", "")
    console.print(values)
    if differences.row_count:
        models = {result.model for result in results}
        baseline = results[0].model if len(models) > 1 else describe_search(first.options)
        console.print(f"\nagainst {baseline}, on the same resamples (p: the paired bootstrap's, two-sided)")
        console.print(differences)
    for result in results:
        if result.evaluation.measurements[0].length_unit is not None:
            console.print(f"\nby length: {result.model}, {describe_search(result.evaluation.options)}")
            console.print(_by_length(result.evaluation))
    console.print()
    for statistics in first.statistics:
        console.print(f"{statistics.metric}: {statistics.rule}")


def _by_length(evaluation: Evaluation) -> Table:
    measurements = evaluation.measurements
    headings = [heading for each in measurements for heading in (f"{each.metric} >", "95 % interval >")]
    table = plain_table(f"source {measurements[0].length_unit} >", "examples >", *headings)
    for bins in zip(*(each.by_length for each in measurements), strict=True):
        cells = [cell for each in bins for cell in (f"{each.value:.2f}", interval_text(each.interval))]
        table.add_row(bins[0].name, f"{bins[0].num_examples:,}", *cells)
    return table
