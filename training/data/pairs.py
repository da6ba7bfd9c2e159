"""Reading pairs of texts. A bad row is the user's to mend: the message says file, line and what is wrong."""

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from attendant.runtime.errors import UserError
from attendant.training.data.config import CorpusFiles

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


def read_pairs(files: CorpusFiles) -> Iterator[Pair]:
    """The pairs of a split, in file order, without the white space around them. Raises UserError: a missing file, a
    missing column, an empty side, bad UTF-8, files of unequal length.
    """
    return _read_tsv(Path(files.tsv)) if files.tsv is not None else _read_parallel(*files.paths)


def read_sources(path: Path) -> list[str]:
    """The sources of a file, one per line, of a `.tsv` its first column; empty lines are left out. Raises UserError: no
    such file, none in it, bad UTF-8.
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


def _read_tsv(path: Path) -> Iterator[Pair]:
    for number, line in numbered_lines(path):
        columns = line.split("\t")
        if len(columns) != 2:
            raise UserError(
                f"{path}:{number}: {len(columns)} column{'s' if len(columns) > 1 else ''}, and a pair has two: "
                "source, one tab, target"
            )
        yield _pair(columns[0], columns[1], (f"{path}:{number}: the source", f"{path}:{number}: the target"))


def _read_parallel(source_path: Path, target_path: Path) -> Iterator[Pair]:
    sources, targets = numbered_lines(source_path), numbered_lines(target_path)
    number = 0
    for number, source in sources:
        _, target = next(targets, (number, None))
        if target is None:
            raise UserError(f"{target_path} ends after line {number - 1}, {source_path} goes on: lines must correspond")
        yield _pair(source, target, (f"{source_path}:{number}: the line", f"{target_path}:{number}: the line"))
    if next(targets, None) is not None:
        raise UserError(f"{source_path} ends after line {number}, {target_path} goes on: lines must correspond")


def _pair(source: str, target: str, names: tuple[str, str]) -> Pair:
    pair = Pair(source.strip(), target.strip())
    for text, name in zip((pair.source, pair.target), names, strict=True):
        if not text:
            raise UserError(f"{name} is empty: fill it in or drop the pair")
    return pair


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file in UTF-8, which may be gzip, counted from 1, without their ends.

    Cut at line feeds only: str.splitlines also cuts at characters that texts contain.

    Raises:
        UserError: there is no such file, it can't be read, or a line is not UTF-8.
    """
    try:
        with _open(path) as file:
            for number, raw in enumerate(file, 1):
                try:
                    text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise UserError(
                        f"{path}:{number}: byte {error.start + 1} of the line is not UTF-8 ({error.reason}): convert "
                        "the file, e.g. with iconv"
                    ) from None
                yield number, text.rstrip("\r\n")
    except FileNotFoundError:
        where = "" if path.is_absolute() else f" in {Path.cwd()}, where relative paths start"
        raise UserError(f"{path}: there is no such file{where}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: can't be read: {error}") from None


def _open(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def num_words(text: str) -> int:
    """How many words and punctuation marks a text has: `don't` is one, `x.y` three."""
    return len(WORD_OR_MARK.findall(text))
