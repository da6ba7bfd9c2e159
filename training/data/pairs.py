"""Reading pairs of texts. A bad row is the user's to mend: the message says file, line and what is wrong."""

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from attendant.runtime.errors import UserError
from attendant.training.data.config import CorpusFiles, Split, SplitFiles, SplitShares
from attendant.training.data.lines import Problems, numbered_lines, readable_lines
from attendant.training.data.rows import Row, rows_of

MOST_CHARACTERS: Final = 20_000
"""Characters of a text up to which it is decoded and measured; a line of megabytes would take minutes and memory."""

WORD_OR_MARK = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Pair:
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Example:
    """A source with every target that counts as right."""

    source: str
    references: tuple[str, ...]


class PairReader:
    """Reads the pairs of a split, in file order, without the white space around them. Each iteration reads the files.

    Attributes:
        num_empty: pairs that the last iteration left out because a side is empty.
        notes: lines about what the last iteration read otherwise than it stands.
    """

    def __init__(self, files: CorpusFiles) -> None:
        self._files = files if isinstance(files, SplitFiles) else SplitFiles(**dict(files))
        self.num_empty = 0
        self.notes: list[str] = []

    def __iter__(self) -> Iterator[Pair]:
        """Raises UserError: a missing file, files of unequal length; at the end: all bad rows together."""
        problems, part = Problems(), self._files.part
        self.num_empty, self.notes = 0, []
        for path, number, (source, target) in self._rows(problems):
            pair = Pair(source.strip(), target.strip())
            if pair.source and pair.target:
                if part is None or split_of_source(pair.source, part.shares) == part.name:
                    yield pair
            elif self._files.drop_empty:
                self.num_empty += 1
            else:
                empty = "the source is" if pair.target else "the target is" if pair.source else "both sides are"
                problems.add("empty", path, number, f"{empty} empty")
        problems.raise_if_any()

    def _rows(self, problems: Problems) -> Iterator[tuple[Path, int, Sequence[str]]]:
        """Yields each row after its file and line."""
        files = self._files
        for path in map(Path, files.pairs or ()):
            for number, cells in rows_of(path, files.columns, problems, self.notes):
                yield path, number, cells
        for source, target in zip(map(Path, files.source or ()), map(Path, files.target or ()), strict=True):
            for number, cells in _parallel_rows(source, target, problems):
                yield source if not cells[0].strip() else target, number, cells


def no_pairs(files: CorpusFiles) -> UserError:
    """Returns the error for files without a pair."""
    part = files.part if isinstance(files, SplitFiles) else None
    if part is None or part.name == "train":
        return UserError(f"{files} has no pairs")
    share = getattr(part.shares, part.name)
    return UserError(f"{files} has no pairs: raise data.split.{part.name} = {share:g}, or give more pairs")


def read_pairs(files: CorpusFiles) -> Iterator[Pair]:
    """Yields the pairs of a split, as `PairReader` does."""
    return iter(PairReader(files))


def split_of_source(source: str, shares: SplitShares) -> Split:
    """Returns the split of a source: always the same one, whatever its case and wherever it is."""
    key = unicodedata.normalize("NFC", source).casefold().encode("utf-8", "surrogatepass")
    place = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest()) / 2**64
    if place < shares.validation:
        return "validation"
    return "test" if place < shares.validation + shares.test else "train"


def is_measurable(pair: Pair) -> bool:
    """Returns whether a held-out pair can be decoded and measured in reasonable time."""
    return len(pair.source) <= MOST_CHARACTERS and len(pair.target) <= MOST_CHARACTERS


def read_sources(path: Path) -> list[str]:
    """Returns the sources of a file, one per line, of a `.tsv` its first column; empty lines are left out.

    Raises:
        UserError: no such file, none in it, bad UTF-8.
    """
    has_columns = ".tsv" in path.suffixes
    lines = (line.partition("\t")[0] if has_columns else line for _, line in numbered_lines(path))
    sources = [source for line in lines if (source := line.strip())]
    if not sources:
        raise UserError(f"{path}: there is no source in it: write one per line")
    return sources


def group_references(pairs: Iterable[Pair]) -> list[Example]:
    """One example per distinct source, in order of first appearance, with its distinct targets in order."""
    grouped: dict[str, dict[str, None]] = {}
    for pair in pairs:
        grouped.setdefault(pair.source, {})[pair.target] = None
    return [Example(source, tuple(targets)) for source, targets in grouped.items()]


def sample_evenly(examples: Sequence[Example], count: int | None) -> list[Example]:
    """`count` examples at even distances, the same ones each time; all where count is None or not smaller."""
    if count is None or count >= len(examples):
        return list(examples)
    return [examples[index * len(examples) // count] for index in range(count)]


def num_words(text: str) -> int:
    """How many words and punctuation marks a text has: `don't` is one, `x.y` three."""
    return len(WORD_OR_MARK.findall(text))


def _parallel_rows(source_path: Path, target_path: Path, problems: Problems) -> Iterator[Row]:
    sources, targets = readable_lines(source_path, problems), readable_lines(target_path, problems)
    number = 0
    for number, source in sources:
        _, target = next(targets, (number, ...))
        if target is ...:
            raise UserError(f"{target_path} ends after line {number - 1}, {source_path} goes on: lines must correspond")
        if source is not None and target is not None:
            yield number, (source, target)
    if next(targets, None) is not None:
        raise UserError(f"{source_path} ends after line {number}, {target_path} goes on: lines must correspond")
