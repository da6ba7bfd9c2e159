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
    document,
    is_bundle,
    open_bundle_model,
    outputs_file,
    read_data,
)
from attendant.training.progress import progress_bar
from attendant.training.table import problems_of, requirement


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """--split or --data, for `read_chosen` (training/evaluation/session.py)."""
    data = parser.add_mutually_exclusive_group()
    data.add_argument("--split", choices=("test", "validation"), default="test", help="which split (default: test)")
    data.add_argument(
        "--data",
        metavar="FILE.tsv|SOURCE,TARGET",
        help="other data: a file of pairs, also FILE[COLUMN,COLUMN]; or two files whose lines correspond "
        "(docs/data.md)",
    )


def check_folder(option: str, path: Path) -> None:
    """Raises UserError where a file could not be written for want of its directory; said before anything is decoded."""
    if not path.parent.is_dir():
        raise UserError(f"{option} {path}: there is no directory {path.parent}: make it first")


PIPE_WIDTH = 200
"""Columns where standard output is no terminal: nothing is folded."""


def show(results: Sequence[Result], data_name: str) -> None:
    """Prints every measurement, the differences to the first model, and the bins of lengths."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    first = results[0].evaluation
    resamples = first.measurements[0].num_resamples
    intervals = f"; 95 % intervals from {resamples:,} resamples of them" if resamples else ""
    console.print(f"{first.num_examples:,} examples: {data_name}{intervals}")
    console.print(_measurements(results))
    if any(result.differences for result in results):
        models = {result.model for result in results}
        baseline = results[0].model if len(models) > 1 else describe_search(first.options)
        console.print(f"\nagainst {baseline}, on the same resamples (p: the paired bootstrap's, two-sided)")
        console.print(_differences(results))
    for result in results:
        if result.evaluation.measurements[0].length_unit is not None:
            console.print(f"\nby length: {result.model}, {describe_search(result.evaluation.options)}")
            console.print(_lengths(result.evaluation))
    console.print()
    for statistics in first.statistics:
        console.print(f"{statistics.metric}: {statistics.rule}")


def _measurements(results: Sequence[Result]) -> Table:
    table = _plain_table("model", "search", "metric", "value >", "95 % interval >", "examples/s >")
    for result in results:
        names = (result.model, describe_search(result.evaluation.options))
        rate = f"{result.examples_per_second:,.0f}" if result.examples_per_second >= 10 else ""
        rate = rate or f"{result.examples_per_second:.1f}"
        for measurement in result.evaluation.measurements:
            value, interval = f"{measurement.value:.2f}", interval_text(measurement.interval)
            table.add_row(*names, measurement.metric, value, interval, rate)
            names, rate = ("", ""), ""
    return table


def _differences(results: Sequence[Result]) -> Table:
    table = _plain_table("model", "search", "metric", "difference >", "95 % interval >", "p >")
    for result in results:
        names = (result.model, describe_search(result.evaluation.options))
        for one in result.differences:
            p_value = "" if one.p_value is None else f"{one.p_value:.3f}"
            table.add_row(*names, one.metric, f"{one.value:+.2f}", interval_text(one.interval), p_value)
            names = ("", "")
    return table


def _lengths(evaluation: Evaluation) -> Table:
    measurements = evaluation.measurements
    headings = [heading for one in measurements for heading in (f"{one.metric} >", "95 % interval >")]
    table = _plain_table(f"source {measurements[0].length_unit} >", "examples >", *headings)
    for bins in zip(*(one.by_length for one in measurements), strict=True):
        cells = [cell for one in bins for cell in (f"{one.value:.2f}", interval_text(one.interval))]
        table.add_row(bins[0].name, f"{bins[0].num_examples:,}", *cells)
    return table


def _plain_table(*headings: str) -> Table:
    """A plain table; a heading that ends in ">" is of numbers, which stand to the right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading.rstrip(" >"), justify="right" if heading.endswith(">") else "left")
    return table


DESCRIPTION = """Decodes a test set and measures the outputs, each value with its 95 % interval by bootstrap resampling.
A run's values are recorded in its evaluation.json too. Several models are measured on the same data and compared with
the first, several searches of one model (beam sizes, length penalties, patiences) with the first of those: choose by
--split validation, and report one value on test. What is not given is the run's [evaluation], or the bundle's own."""
EDGES = ",".join(map(str, DEFAULT_EDGES))


def evaluate_parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="attendant evaluate", description=DESCRIPTION)
    found.add_argument("paths", type=Path, nargs="+", metavar="RUN|BUNDLE", help="a directory of training or export")
    add_data_options(found)
    found.add_argument("--metrics", metavar="NAME,...", help=f"of {', '.join(get_args(MetricName))}")
    found.add_argument(
        "--bleu-tokenizer",
        metavar="NAME",
        help=f"what cuts texts into BLEU's words: {', '.join(get_args(BleuTokenizer))}",
    )
    found.add_argument(
        "--beam-size", "--beam-sizes", metavar="N,...", help="live hypotheses; 1 is greedy; several: each of them"
    )
    found.add_argument(
        "--length-penalty",
        "--length-penalties",
        metavar="ALPHA,...",
        help="log P is divided by ((K + length) / (K + 1)) ^ ALPHA; 0: by nothing; several likewise",
    )
    found.add_argument(
        "--length-penalty-offset", metavar="K,...", help="5: GNMT's; 0: the length's own power; several likewise"
    )
    found.add_argument(
        "--patience", metavar="P,...", help="a beam ends when P times its size have ended; several likewise"
    )
    found.add_argument("--max-length", metavar="N", help="target tokens after which an output is cut")
    found.add_argument(
        "--ensemble", action="store_true", help="the runs decode together, by the mean of their probabilities"
    )
    found.add_argument(
        "--rescore",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="rank each beam's hypotheses by this run's probabilities, or by the mean of several runs'",
    )
    found.add_argument("--checkpoint", choices=("best", "last"), help="a run's weights (default: best)")
    found.add_argument(
        "--precision", metavar="P,...", help="of a bundle's graphs; several: each (default: the manifest's)"
    )
    found.add_argument("--provider", choices=get_args(Provider), help="what runs a bundle (default: cpu)")
    found.add_argument(
        "--bootstrap",
        type=int,
        default=DEFAULT_RESAMPLES,
        metavar="N",
        help="resamples for the intervals; 0: none (default: %(default)s)",
    )
    found.add_argument(
        "--by-length",
        nargs="?",
        const=EDGES,
        metavar="N,...",
        help=f"measure by the source's length too, in bins that end there (without a value: {EDGES})",
    )
    found.add_argument(
        "--length-unit",
        choices=get_args(LengthUnit),
        help="counted in words and punctuation marks, or in tokens of the model's own tokenizer",
    )
    found.add_argument("--output", type=Path, metavar="FILE.json", help="write the results here too")
    found.add_argument("--outputs", type=Path, metavar="FILE.tsv", help="write every output here, with its score")
    found.add_argument("--json", action="store_true", help="print the results as JSON instead of tables")
    return found


def run_evaluate(arguments: argparse.Namespace) -> None:
    bundles = {path for path in arguments.paths if is_bundle(path)}
    precisions = arguments.precision.split(",") if arguments.precision else [None]
    _check(arguments, bundles, precisions)
    searches = list(_searches(arguments))
    for search in searches:
        _config(EvaluationConfig(), search)  # a mistake is told before anything is loaded
    data = _data(arguments, bundles)
    rescorer = _rescorer(arguments)
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
            opened = _open(arguments, path, precision, is_run=path not in bundles)
            if rescorer is not None:
                opened = _rescored(opened, rescorer)
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
                is_of_a_run = path not in bundles and not arguments.ensemble and rescorer is None
                if is_of_a_run and (refusal := _record(path, results[-1])):
                    unrecorded[path] = refusal
    _tell(arguments, results, data.name)
    for refusal in unrecorded.values():
        # A run that is only there to be read goes without.
        if refusal.number not in READ_ONLY:
            raise refusal
        print(f"training: not recorded: {refusal}", file=sys.stderr)


def _tell(arguments: argparse.Namespace, results: Sequence[Result], data_name: str) -> None:
    """Shown first: what it is to be written to may be full."""
    found = document(results, data_name)
    if arguments.json:
        print(json.dumps(found, indent=2, sort_keys=True, ensure_ascii=False))
    else:
        show(results, data_name)
    if arguments.output is not None:
        write_json(arguments.output, found)


def _record(run: Path, result: Result) -> CantWrite | None:
    """Adds what was measured to the run's own list, and returns why it could not."""
    from attendant.training.run.directory import Run  # noqa: PLC0415

    try:
        Run(run).record_evaluations([measurement.to_json() for measurement in result.evaluation.measurements])
    except CantWrite as refusal:
        return refusal
    return None


def _open(arguments: argparse.Namespace, path: Path, precision: Precision | None, *, is_run: bool) -> OpenedModel:
    if is_run:
        from attendant.training.run.loading import open_runs  # noqa: PLC0415

        return open_runs(
            arguments.paths if arguments.ensemble else [path], "--ensemble", arguments.checkpoint or "best"
        )
    return open_bundle_model(path, precision, arguments.provider or "cpu")


def _rescorer(arguments: argparse.Namespace) -> OpenedModel | None:
    if arguments.rescore is None:
        return None
    from attendant.training.run.loading import open_runs  # noqa: PLC0415

    return open_runs(arguments.rescore, "--rescore")


def _rescored(opened: OpenedModel, rescorer: OpenedModel) -> OpenedModel:
    """The model under a name that says by what its hypotheses are ranked. Raises UserError: other tokenizers."""
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
    """The searches that the options ask for: what each changes in a model's own configuration."""
    given = {
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
        # Greedy search has one hypothesis: no penalty could rank others, and no patience wait for them. And without a
        # penalty its offset changes nothing.
        search_of_its_own = (beam_size,) if beam_size == "1" else (beam_size, patience) if penalty == "0" else values
        if search_of_its_own in done:
            continue
        done.add(search_of_its_own)
        search = given | dict(zip(SEARCH_OPTIONS, values, strict=True))
        yield {name: value for name, value in search.items() if value is not None}


def _config(own: EvaluationConfig, search: dict[str, Any]) -> EvaluationConfig:
    try:
        return EvaluationConfig.model_validate(own.model_dump() | search)
    except ValidationError as error:
        problem = problems_of(error)[0]
        option = str(problem["loc"][0]).replace("_", "-")
        raise UserError(f"--{option} {problem['input']}: {requirement(problem)}") from None


def _data(arguments: argparse.Namespace, bundles: set[Path]) -> EvaluationData:
    runs = [path for path in arguments.paths if path not in bundles]
    if arguments.data is None and not runs:
        raise UserError(f"the bundle {arguments.paths[0]} knows of no {arguments.split} split: give --data FILE.tsv")
    if arguments.data is not None:
        return read_data(CorpusFiles.named(arguments.data))
    from attendant.training.run.loading import read_held_out  # noqa: PLC0415

    return read_held_out(runs, arguments.split)
