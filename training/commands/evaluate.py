"""python -m training evaluate RUN: measures a trained model with the decoder that serves."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from pydantic import ValidationError
from rich.console import Console
from rich.progress import Progress

from runtime.errors import UserError
from runtime.tokenizer import special_ids
from training.checkpoint import BEST, LAST, LoadedRun, load_run
from training.data.config import CorpusFiles
from training.data.pairs import group_references, read_pairs
from training.evaluation import EvaluationConfig, Measurement, evaluate
from training.experiment import choose_device
from training.metrics import MetricName
from training.run import Run
from training.stepper import TorchStepper


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m training evaluate",
        description="Measures a run's model and records the results in its evaluation.json. What is not given is the "
        "recipe's [evaluation].",
    )
    found.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    data = found.add_mutually_exclusive_group()
    data.add_argument("--split", choices=("test", "validation"), default="test", help="which part (default: test)")
    data.add_argument("--data", metavar="FILE.tsv", help="other data: source, tab, target; may be gzip")
    found.add_argument("--checkpoint", choices=(BEST, LAST), default=BEST, help="which weights (default: best)")
    found.add_argument("--beam-size", type=int, metavar="N", help="live hypotheses; 1 is greedy")
    found.add_argument("--length-penalty", type=float, metavar="ALPHA", help="GNMT's alpha; 0: none")
    found.add_argument("--metrics", metavar="NAME,...", help=f"of {', '.join(get_args(MetricName))}")
    return found


def run(arguments: argparse.Namespace) -> None:
    loaded = load_run(arguments.run, arguments.checkpoint)
    files = CorpusFiles(tsv=arguments.data) if arguments.data else loaded.recipe.data.files(arguments.split)
    if files is None:
        raise UserError(f"the recipe of {arguments.run} has no data.{arguments.split}: give --data FILE.tsv")
    config = _config(arguments, loaded.recipe.evaluation)
    left_out = frozenset[str]() if arguments.data else Run(arguments.run).left_out(arguments.split)
    measurements = measure(loaded, files, config, which=arguments.checkpoint, left_out=left_out)
    Run(arguments.run).record_evaluations([measurement.to_json() for measurement in measurements])
    show(measurements)


def measure(
    loaded: LoadedRun,
    files: CorpusFiles,
    config: EvaluationConfig,
    *,
    which: str = BEST,
    left_out: frozenset[str] = frozenset(),
) -> list[Measurement]:
    """Evaluates a run's model on files, with a bar on a terminal.

    Args:
        left_out: sources that are not measured; the protocol says how many.

    Raises:
        UserError: bad or no data.
    """
    examples = group_references(pair for pair in read_pairs(files) if pair.source not in left_out)
    data_name = str(files) if which == BEST else f"{files}, {which} checkpoint"
    if left_out:
        data_name += f", without {len(left_out)} sources that the training part has too"
    if not examples:
        raise UserError(f"{files} has no pairs")
    recipe = loaded.recipe
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("evaluating", total=len(examples))
        return evaluate(
            TorchStepper(loaded.model, choose_device(recipe)),
            examples,
            loaded.source_tokenizer,
            loaded.target_tokenizer,
            config,
            special_ids=special_ids(loaded.model.start_id),
            append_eos=recipe.source.append_eos,
            max_length=recipe.data.max_target_tokens,
            data_name=data_name,
            progress=lambda count: progress.advance(task, count),
        )


def show(measurements: Sequence[Measurement]) -> None:
    for measurement in measurements:
        protocol = f"{measurement.num_examples:,} examples; {measurement.protocol}"
        print(f"{measurement.metric} {measurement.value:.2f}  ({protocol})")


def _config(arguments: argparse.Namespace, recipe: EvaluationConfig) -> EvaluationConfig:
    given = {
        "beam_size": arguments.beam_size,
        "length_penalty": arguments.length_penalty,
        "metrics": arguments.metrics.split(",") if arguments.metrics else None,
    }
    values = recipe.model_dump() | {name: value for name, value in given.items() if value is not None}
    try:
        return EvaluationConfig.model_validate(values)
    except ValidationError as error:
        problem = error.errors()[0]
        option = str(problem["loc"][0]).replace("_", "-")
        raise UserError(f"--{option} {problem['input']}: {problem['msg']}") from None
