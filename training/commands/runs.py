"""Commands on trained runs: attendant report, average, label."""

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO, get_args

import torch

from attendant.runtime.command import CommandParser
from attendant.runtime.errors import UserError
from attendant.runtime.files import is_device, lock, new_folder, translate_os_errors
from attendant.training.commands.evaluate import add_data_options
from attendant.training.data.lines import numbered_lines, read_sources
from attendant.training.data.pairs import MOST_CHARACTERS, Example
from attendant.training.evaluation.bootstrap import LengthUnit
from attendant.training.evaluation.evaluating import decode_examples, search_options
from attendant.training.evaluation.session import OpenedModel
from attendant.training.library.evaluation import check_folder, report
from attendant.training.progress import counter, progress_bars
from attendant.training.run import checkpoint
from attendant.training.run.directory import Run
from attendant.training.run.loading import load_run, open_runs

REPORT_DESCRIPTION = """\
Measures runs on held-out data and shows them: learning curves, quality by source length, how far
back in time gradients reach, attention, the best and the worst outputs, recipe and data. Several runs are compared with
the first, in the same pictures. Each run decodes by its recipe's [evaluation]; all are measured by the first run's
metrics."""
DEFAULT_NAME = "report.html"
COPIED = ("recipe.toml", "versions.json", "data.json", "source_tokenizer.json", "target_tokenizer.json")
CHUNK = 2048  # Sources that are decoded and written together: a killed command loses at most this many.


def report_parser() -> CommandParser:
    parser = CommandParser(prog="attendant report", description=REPORT_DESCRIPTION)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a run directory")
    parser.add_argument(
        "--output",
        type=Path,
        action="append",
        metavar="FILE",
        help="FILE.html: one page that needs nothing else; FILE.md: Markdown, its pictures in FILE_pictures/ next to "
        f"it; may be repeated (default: {DEFAULT_NAME} in the run directory; required for several runs)",
    )
    add_data_options(parser)
    parser.add_argument(
        "--examples",
        default="3",
        metavar="FILE|N",
        help="examples whose attention is shown, in addition to the worst: a file with one source per line, optionally "
        "with a tab and a reference; or a number of examples, at equal distances in the data (default: %(default)s)",
    )
    parser.add_argument(
        "--length-unit",
        choices=get_args(LengthUnit),
        help="unit of lengths (default: words; tokens if most sources are one word or two)",
    )
    return parser


def run_report(arguments: argparse.Namespace) -> None:
    outputs = arguments.output or [arguments.runs[0] / DEFAULT_NAME]
    if len(arguments.runs) > 1 and not arguments.output:
        raise UserError(f"a report of {len(arguments.runs)} runs needs a place of its own: give --output FILE.html")
    with progress_bars() as progress:
        report(
            arguments.runs,
            output=outputs,
            data=arguments.data,
            split=arguments.split,
            examples=arguments.examples,
            length_unit=arguments.length_unit,
            progress=progress,
        )
    for path in outputs:
        print(path)


def average_parser() -> CommandParser:
    parser = CommandParser(
        prog="attendant average",
        description="Averages the weights of a run's last validated checkpoints (those that training.keep_checkpoints "
        "kept) into a new run, to be evaluated and exported.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run directory")
    parser.add_argument("--last", type=int, default=5, metavar="N", help="number of checkpoints (default: 5)")
    parser.add_argument("--output", type=Path, required=True, metavar="DIRECTORY", help="the new run directory")
    return parser


def run_average(arguments: argparse.Namespace) -> None:
    if arguments.last < 1:
        raise UserError(f"--last {arguments.last}: must be at least 1")
    steps = average_run(Run(arguments.run), arguments.last, arguments.output)
    print(f"{arguments.output}: the mean of the weights at steps {', '.join(map(str, steps))}")
    print(f"next: attendant evaluate {shlex.quote(str(arguments.output))}")


def average_run(run: Run, last: int, output: Path) -> list[int]:
    """Averages the weights of the last validated checkpoints.

    Args:
        output: a new run directory. Its checkpoint can be evaluated and exported, but not trained further.

    Returns:
        the steps of the checkpoints.

    Raises:
        UserError: there are fewer; `output` exists already, or can't be written.
    """
    if output.exists():
        raise UserError(f"{output} exists: --output names another")
    load_run(run.path, checkpoint.LAST)  # refuses a run with missing or damaged files
    validated = checkpoint.validated_checkpoints(run)
    if len(validated) < last:
        raise UserError(
            f"{run.path} has {len(validated)} validated checkpoint{'' if len(validated) == 1 else 's'}, fewer than "
            f"--last {last}: train with training.keep_checkpoints = {last}, or average fewer"
        )
    chosen = validated[-last:]
    models = [checkpoint.load_tensors(path, checkpoint.MODEL_FILE) for path in chosen]
    # The means are taken in float64.
    weights = {
        name: torch.stack([model[name].double() for model in models]).mean(0).to(first.dtype)
        for name, first in models[0].items()
    }
    steps = [checkpoint.load_state(path).step for path in chosen]
    content = {"training": checkpoint.load_content(chosen[-1])["training"], "averaged_steps": steps}
    with new_folder(output) as folder:
        for name in COPIED:
            shutil.copyfile(run.path / name, folder / name)
        for path in (run.left_out_path, run.start_path, run.teachers_path):
            if path.exists():
                shutil.copyfile(path, folder / path.name)
        if run.pairs_path.exists():
            shutil.copytree(run.pairs_path, folder / run.pairs_path.name)
        checkpoint.publish_checkpoint(Run(folder), {checkpoint.MODEL_FILE: weights}, content, step=steps[-1], best=True)
    return steps


def label_parser() -> CommandParser:
    parser = CommandParser(
        prog="attendant label",
        description="Decodes sources with a run, or with several as an ensemble, and writes each with its output: "
        "pairs that another model learns from (sequence-level knowledge distillation, Kim and Rush 2016).",
    )
    parser.add_argument("paths", type=Path, nargs="+", metavar="RUN", help="run directories; several: an ensemble")
    parser.add_argument(
        "--sources", type=Path, required=True, metavar="FILE", help="a source per line; of a .tsv, its first column"
    )
    parser.add_argument("--output", type=Path, required=True, metavar="FILE.tsv", help="source, tab, output")
    parser.add_argument("--beam-size", type=int, metavar="N", help="live hypotheses (default: the run's [evaluation])")
    parser.add_argument("--resume", action="store_true", help="continue an output that was interrupted")
    return parser


def run_label(arguments: argparse.Namespace) -> None:
    output: Path = arguments.output
    if arguments.beam_size is not None and arguments.beam_size < 1:
        raise UserError(f"--beam-size {arguments.beam_size}: must be at least 1")
    is_stream = is_device(output)
    if is_stream and arguments.resume:
        raise UserError(f"--resume continues a file, and {output} is none: leave --resume out")
    if output.exists() and not arguments.resume and not is_stream:
        raise UserError(f"{output} exists: --resume continues it; --output names another")
    check_folder("--output", output, [arguments.sources])
    texts = read_sources(arguments.sources)
    short = [text for text in texts if len(text) <= MOST_CHARACTERS]
    # A tab within a source would begin another column.
    sources = dict.fromkeys(text.replace("\t", " ") for text in short)
    opened = open_runs(arguments.paths, "label")
    with translate_os_errors(output), output.open("a", encoding="utf-8") as file:
        done = set[str]()
        if not is_stream:
            lock(file.fileno(), output)
            # An interrupted command may have left a last line that is not whole.
            os.truncate(output, output.read_bytes().rfind(b"\n") + 1)
            done = {line.partition("\t")[0] for _, line in numbered_lines(output)}
        waiting = [source for source in sources if source not in done]
        num_empty = _label(opened, waiting, arguments.beam_size or opened.config.beam_size, file)
    lines = [f"{output}: {len(waiting) - num_empty:,} pairs written"]
    if num_empty:
        lines.append(f"{num_empty:,} sources have an empty output, which is no pair: left out")
    if num_long := len(texts) - len(short):
        lines.append(f"{num_long:,} sources have more than {MOST_CHARACTERS:,} characters: left out")
    print("\n".join(lines), file=sys.stderr if is_stream else sys.stdout)  # Standard output may have the pairs.


def _label(opened: OpenedModel, sources: Sequence[str], beam_size: int, file: TextIO) -> int:
    """Writes a line for each source; returns the number of sources whose output is empty."""
    model, num_empty = opened.model, 0
    options = search_options(opened.config.model_copy(update={"beam_size": beam_size}), model)
    with progress_bars() as progress:
        count = counter(progress, "labelling", len(sources))
        for first in range(0, len(sources), CHUNK):
            chunk = [Example(source, ()) for source in sources[first : first + CHUNK]]
            for decoded in decode_examples(model, chunk, options, progress=count):
                text = " ".join(decoded.text.split())  # a tab or a line feed would be another column or row
                num_empty += not text
                if text:
                    file.write(f"{decoded.example.source}\t{text}\n")
            file.flush()
    return num_empty
