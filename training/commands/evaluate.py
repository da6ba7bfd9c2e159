"""attendant evaluate PATH...: the options of `attendant.evaluate`, and its tables."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, get_args

from attendant.runtime.bundle.manifest import SEARCH_OPTIONS, Provider
from attendant.runtime.errors import UserError
from attendant.runtime.files import READ_ONLY, write_json
from attendant.training.commands.confidence import (
    add_confidence_options,
    measure_confidences,
    refuse_without_confidence,
)
from attendant.training.evaluation.bootstrap import DEFAULT_EDGES, DEFAULT_RESAMPLES, LengthUnit
from attendant.training.evaluation.metrics import BleuTokenizer, MetricName
from attendant.training.library.evaluation import Results, check_folder, evaluate
from attendant.training.progress import plain_console, progress_bars

DESCRIPTION = """Decodes a test set and measures the outputs, each value with its 95 % interval by bootstrap resampling.
A run's values are recorded in its evaluation.json too. Several models are measured on the same data and compared with
the first, several searches of one model (beam sizes, length penalties, patiences) with the first of those: choose by
--split validation, and report one value on test. What is not given is the run's [evaluation], or the bundle's own."""
EDGES = ",".join(map(str, DEFAULT_EDGES))


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """Adds --split and --data."""
    data = parser.add_mutually_exclusive_group()
    data.add_argument("--split", choices=("test", "validation"), default="test", help="which split (default: test)")
    data.add_argument(
        "--data",
        metavar="FILE.tsv|SOURCE,TARGET",
        help="other data: a file of pairs, also FILE[COLUMN,COLUMN]; or two files whose lines correspond "
        "(docs/data.md)",
    )


def evaluate_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="attendant evaluate", description=DESCRIPTION)
    add = parser.add_argument
    add("paths", type=Path, nargs="+", metavar="RUN|BUNDLE", help="a directory of training or export")
    add_data_options(parser)
    add("--metrics", metavar="NAME,...", help=f"of {', '.join(get_args(MetricName))}")
    tokenizers = ", ".join(get_args(BleuTokenizer))
    add("--bleu-tokenizer", metavar="NAME", help=f"what cuts texts into BLEU's words: {tokenizers}")
    add(
        "--ignored-characters",
        metavar="TEXT",
        help="leave them out of outputs and references before they are compared, e.g. 012: phones without stress",
    )
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
    add_confidence_options(parser)
    return parser


def run_evaluate(arguments: argparse.Namespace) -> None:
    if arguments.output is not None:
        check_folder("--output", arguments.output)
    if arguments.confidence:
        measure_confidences(arguments)
        return
    refuse_without_confidence(arguments)
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


def show_results(results: Results, *, as_json: bool = False, output: Path | None = None) -> None:
    """Prints results before it writes them: the disk may be full.

    Raises:
        CantWrite: `output` or a run's evaluation.json can't be written. A read-only run is measured without a record.
    """
    if as_json:
        print(json.dumps(results.to_json(), indent=2, sort_keys=True, ensure_ascii=False))
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
        raise UserError(f"--by-length {text}: must be whole numbers that rise, e.g. {EDGES}; paths stand before it")
    return edges
