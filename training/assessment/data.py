"""The examples that models are measured on."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attendant.runtime.errors import UserError
from attendant.training.data.config import CorpusFiles, Split
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
    without = f", without {len(left_out)} sources that the training split has too" if left_out else ""
    return EvaluationData(f"{files}{without}", examples)


def read_held_out(runs: Sequence[Path], split: Split) -> EvaluationData:
    """The held-out split that all these runs' recipes name, without what one of them was trained on.

    Raises:
        UserError: a recipe names no such split, or another one than the first's; bad or no data.
    """
    found = [_held_out_files(path, split) for path in runs]
    for path, files in zip(runs, found, strict=True):
        if files != found[0]:
            raise UserError(
                f"the {split} split of {path} is {files}, that of {runs[0]} is {found[0]}: to compare them on one, "
                "give --data FILE.tsv"
            )
    return read_data(found[0], frozenset().union(*(Run(path).left_out(split) for path in runs)))


def _held_out_files(path: Path, split: Split) -> CorpusFiles:
    files = Run(path).recipe().data.files(split)
    if files is None:
        raise UserError(f"the recipe of {path} has no data.{split}: give --data FILE.tsv")
    return files
