"""The examples that models are measured on."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attendant.runtime.errors import UserError
from attendant.training.data.config import CorpusFiles, Part
from attendant.training.data.pairs import Example, group_references, read_pairs
from attendant.training.run.directory import Run


@dataclass(frozen=True, slots=True)
class EvaluationData:
    """Examples, and what a protocol calls them."""

    name: str
    examples: list[Example]


def read_data(files: CorpusFiles, left_out: frozenset[str] = frozenset()) -> EvaluationData:
    """The examples of files, one per source, with all its targets as references.

    Args:
        left_out: sources that are not measured; the name says how many.

    Raises:
        UserError: bad or no data.
    """
    examples = group_references(pair for pair in read_pairs(files) if pair.source not in left_out)
    if not examples:
        raise UserError(f"{files} has no pairs")
    without = f", without {len(left_out)} sources that the training part has too" if left_out else ""
    return EvaluationData(f"{files}{without}", examples)


def read_held_out(runs: Sequence[Path], part: Part) -> EvaluationData:
    """The held-out part that all these runs' recipes name, without what one of them was trained on.

    Raises:
        UserError: a recipe names no such part, or another one than the first's; bad or no data.
    """
    found = [_held_out_files(path, part) for path in runs]
    for path, files in zip(runs, found, strict=True):
        if files != found[0]:
            raise UserError(
                f"the {part} part of {path} is {files}, that of {runs[0]} is {found[0]}: to compare them on one, give "
                "--data FILE.tsv"
            )
    return read_data(found[0], frozenset().union(*(Run(path).left_out(part) for path in runs)))


def _held_out_files(path: Path, part: Part) -> CorpusFiles:
    files = Run(path).recipe().data.files(part)
    if files is None:
        raise UserError(f"the recipe of {path} has no data.{part}: give --data FILE.tsv")
    return files
