"""attendant label RUN... --sources FILE --output FILE.tsv: the models' own outputs, as pairs to train on."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from attendant.runtime.errors import UserError
from attendant.runtime.files import lock, told_of
from attendant.training.assessment.models import OpenedModel
from attendant.training.assessment.runs import open_runs
from attendant.training.commands.options import check_folder
from attendant.training.data.lines import numbered_lines
from attendant.training.data.pairs import Example, read_sources
from attendant.training.evaluation.decoding import decode_examples
from attendant.training.evaluation.evaluating import search_options
from attendant.training.terminal import progress_bar

CHUNK = 2048
"""Sources that are decoded and written together: what a killed command loses at most."""


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="attendant label",
        description="Decodes sources by a run, or by several as an ensemble, and writes each with its output: pairs "
        "that another model learns from (sequence-level knowledge distillation, Kim and Rush 2016).",
    )
    found.add_argument("paths", type=Path, nargs="+", metavar="RUN", help="run directories; several: an ensemble")
    found.add_argument(
        "--sources", type=Path, required=True, metavar="FILE", help="a source per line; of a .tsv, its first column"
    )
    found.add_argument("--output", type=Path, required=True, metavar="FILE.tsv", help="source, tab, output")
    found.add_argument("--beam-size", type=int, metavar="N", help="live hypotheses (default: the run's [evaluation])")
    found.add_argument("--resume", action="store_true", help="go on with an output that was interrupted")
    return found


def run(arguments: argparse.Namespace) -> None:
    output: Path = arguments.output
    if arguments.beam_size is not None and arguments.beam_size < 1:
        raise UserError(f"--beam-size {arguments.beam_size}: must be at least 1")
    if output.exists() and not arguments.resume:
        raise UserError(f"{output} exists: --resume goes on with it, --output names another")
    check_folder("--output", output)
    sources = dict.fromkeys(read_sources(arguments.sources))
    for source in _labelled(output) if arguments.resume else ():
        sources.pop(source, None)
    opened = open_runs(arguments.paths, "label")
    num_empty = _label(opened, list(sources), arguments.beam_size or opened.config.beam_size, output)
    print(f"{output}: {len(sources) - num_empty:,} pairs written")
    if num_empty:
        print(f"{num_empty:,} sources have an empty output, which is no pair: left out")


def _label(opened: OpenedModel, sources: Sequence[str], beam_size: int, output: Path) -> int:
    """Appends a line for each source; returns how many have no output."""
    model, num_empty = opened.model, 0
    options = search_options(opened.config.model_copy(update={"beam_size": beam_size}), model)
    with told_of(output), output.open("a", encoding="utf-8") as file, progress_bar() as progress:
        lock(file.fileno(), output)
        task = progress.add_task("labelling", total=len(sources))
        for first in range(0, len(sources), CHUNK):
            chunk = [Example(source, ()) for source in sources[first : first + CHUNK]]
            for decoded in decode_examples(model, chunk, options, progress=lambda num: progress.advance(task, num)):
                text = " ".join(decoded.text.split())  # a tab or a line feed would be another column or row
                num_empty += not text
                if text:
                    file.write(f"{decoded.example.source}\t{text}\n")
            file.flush()
    return num_empty


def _labelled(output: Path) -> list[str]:
    """The sources that an output has; a last line that was not written whole is cut off."""
    if not output.exists():
        return []
    with told_of(output):
        os.truncate(output, output.read_bytes().rfind(b"\n") + 1)
    return [line.partition("\t")[0] for _, line in numbered_lines(output)]
