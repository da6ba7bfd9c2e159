"""Reads pairs of texts from TSV, CSV, JSONL or parallel files, plain or compressed."""

import csv
import hashlib
import json
import os
import re
import reprlib
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, TypeGuard, TypeVar

from attendant.runtime.errors import UserError, shown
from attendant.training.data.config import Columns, CorpusFiles, Split, SplitFiles, SplitShares
from attendant.training.data.lines import JSON_SUFFIXES, Problems, format_of, readable_lines
from attendant.training.table import Table

NUM_PROBED_ROWS: Final = 100  # Rows at the beginning of a file by which its delimiter and its quotes are judged.
DELIMITERS: Final = (",", ";", "\t")
DECLARATION: Final = re.compile(r'"?sep=([^\w\s"]|\t)"?\n', re.IGNORECASE)  # Excel's first line.
MAX_FIELD: Final = 2**31 - 1
JSON_ARRAY: Final = re.compile(r"\s*\[\s*(\{|$)")  # The beginning of a file.
NAMES = """
    source target src tgt trg src_text tgt_text source_text target_text input output inputs outputs text texts label
    labels translation translated reference original summary document question answer sentence sentence1 sentence2
    word words phonemes phones pronunciation ipa transcription spelling key value
    english french german spanish italian portuguese dutch polish russian ukrainian chinese japanese korean arabic
    en fr de es it pt nl pl cs ru uk zh ja ko ar tr sv da fi no nb hu ro el he hi vi th id bg hr sr sk sl lt lv et fa ca
    eng fra fre deu ger spa ita por nld pol ces rus ukr zho jpn kor ara
"""
COLUMN_NAMES: Final = frozenset(NAMES.split())  # Cells, in lower case, that are more often headings than texts.

MOST_CHARACTERS: Final = 20_000  # Longer held-out texts are not decoded: a line of megabytes would take minutes.
# Characters that belong to the one before them: vowel signs of Hindi, accents on their own, joiners. `\w` has none.
COMBINING: Final = "\u200c\u200d" + "".join(
    character for character in map(chr, range(0x300, 0x1F000)) if unicodedata.category(character).startswith("M")
)
WORD_OR_MARK = re.compile(rf"\w[\w{COMBINING}]*(?:['’]\w[\w{COMBINING}]*)*|[^\w\s][{COMBINING}]*")

CHUNK_ITEMS = 10_000
Item = TypeVar("Item")
InMemoryPairs = Iterable[Sequence[str]]
"""Pairs in memory: (source, target) each."""

Row = tuple[int, Sequence[str]]  # The number of a row's last line, and its source and target.


@dataclass(frozen=True, slots=True)
class Pair:
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Example:
    """A source with every target that counts as right."""

    source: str
    references: tuple[str, ...]


def _rows_of(path: Path, columns: Columns | None, problems: Problems, notes: list[str]) -> Iterator[Row]:
    """Yields the pairs of a file, unchanged; bad rows are added to `problems`.

    The suffix decides the format, also before .gz and the like: .csv; .jsonl, .ndjson or .json; all others are TSV.

    Args:
        columns: the two names of a header row, the keys of JSONL, or numbers from 1. If None, there are two columns.
        notes: lines about changes to the file's content are added to this list.

    Raises:
        UserError: the file can't be read, or lacks a column; the first row looks like a header.
    """
    suffix = format_of(path)
    if suffix in JSON_SUFFIXES:
        return _objects(path, columns, problems)
    if suffix == ".csv":
        return _chosen(path, _csv_rows(path, problems), columns, problems, "csv")
    return _chosen(path, _tsv_rows(path, problems, notes), columns, problems, "columns")


def _chosen(path: Path, rows: Iterator[Row], columns: Columns | None, problems: Problems, kind: str) -> Iterator[Row]:
    """Yields the two chosen columns of each row."""
    first = next(rows, None)
    if first is None:
        return
    width = 2
    places: tuple[int, ...] = (0, 1)
    is_complete = columns is None or isinstance(columns[0], str)  # The width is that of every row.
    if columns is not None and isinstance(columns[0], str):
        names = [cell.strip() for cell in first[1]]
        if not {*columns} <= {*names}:
            problems.raise_if_any()  # The header row may be a line that can't be read.
        width = len(names)
        places = tuple(_place_of(path, str(name), names) for name in columns)
    else:
        if columns is not None:
            places = tuple(int(number) - 1 for number in columns)
            width = max(places) + 1
        _refuse_header(path, first[1], places)
        rows = chain([first], rows)
    for number, cells in rows:
        if not any(map(str.strip, cells)):
            yield number, ("", "")
        elif len(cells) < width or (is_complete and any(map(str.strip, cells[width:]))):
            count = f"{len(cells)} column{'s' if len(cells) != 1 else ''}"
            needed = "" if columns is None else f", and {width} are needed"
            problems.add(kind, path, number, f"{count}{needed}{_hint(cells)}")
        else:
            yield number, (cells[places[0]], cells[places[1]])


def _place_of(path: Path, name: str, names: Sequence[str]) -> int:
    if names.count(name) != 1:
        there = "names it twice" if name in names else f"has {', '.join(map(repr, names[:20]))}"
        raise UserError(f"{path}: data.columns names {name!r}, and the header row {there}: name two of its columns")
    return names.index(name)


def _refuse_header(path: Path, cells: Sequence[str], places: Sequence[int]) -> None:
    names = [cell.strip().strip('"') for cell in cells]
    chosen = [names[place] for place in places if place < len(names)]
    if len(chosen) == 2 and all(name.casefold() in COLUMN_NAMES for name in chosen) and len(set(names)) == len(names):
        others = f", or to two others of {', '.join(map(repr, names[:20]))}" if len(names) > 2 else ""
        raise UserError(
            f"{path}:1: {' and '.join(map(repr, chosen))} look like the names of columns: set data.columns = "
            f"{json.dumps(chosen, ensure_ascii=False)}{others} (in an option: '{path.name}[{','.join(chosen)}]'); if "
            "they are a pair, move it away from the first line"
        )


def _hint(cells: Sequence[str]) -> str:
    """Returns a possible reason for a wrong number of columns."""
    if any("\r" in cell for cell in cells):
        return "; a carriage return does not end a line: convert it to a line feed"
    text = cells[0].strip() if len(cells) == 1 else ""
    if text.startswith("{") and text.endswith("}"):
        return "; JSON is read from files named .jsonl"
    return "; commas separate columns in files named .csv" if "," in text or ";" in text else ""


def _tsv_rows(path: Path, problems: Problems, notes: list[str]) -> Iterator[Row]:
    rows = ((number, line.split("\t")) for number, line in readable_lines(path, problems) if line is not None)
    head = list(islice(rows, NUM_PROBED_ROWS))
    cells = [cell.strip() for _, row in head for cell in row if cell.strip()]
    if cells and all(len(cell) > 1 and cell[0] == cell[-1] == '"' for cell in cells):
        notes.append(f"{path}: every field is in quotes, which are taken off")
        return ((number, [_unquoted(cell) for cell in row]) for number, row in chain(head, rows))
    return chain(head, rows)


def _unquoted(cell: str) -> str:
    text = cell.strip()
    is_quoted = len(text) > 1 and text[0] == text[-1] == '"'
    return text[1:-1].replace('""', '"') if is_quoted else cell


def _csv_rows(path: Path, problems: Problems) -> Iterator[Row]:
    lines = ((number, f"{line}\n") for number, line in readable_lines(path, problems) if line is not None)
    head = list(islice(lines, NUM_PROBED_ROWS))
    declared = DECLARATION.fullmatch(head[0][1]) if head else None
    # The last line that was read; the reader's own count lacks lines that can't be read.
    place = head.pop(0)[0] if declared else 0

    def counted() -> Iterator[str]:
        nonlocal place
        for number, line in chain(head, lines):
            place = number
            yield line

    def regularity(delimiter: str) -> tuple[int, bool]:
        """Returns the number of rows with the most frequent number of columns above one, and whether these are two."""
        # A carriage return outside of quotes, which the reader refuses, belongs to no delimiter.
        texts = (line.replace("\r", " ") for _, line in head)
        widths = Counter(len(row) for row in csv.reader(texts, delimiter=delimiter, skipinitialspace=True))
        return max(((count, width == 2) for width, count in widths.items() if width > 1), default=(0, False))

    csv.field_size_limit(MAX_FIELD)
    delimiter = declared[1] if declared else max(DELIMITERS, key=regularity)
    reader = csv.reader(counted(), delimiter=delimiter, strict=True, skipinitialspace=True)
    while True:
        former = place
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            begun = f"; the row begins in line {former + 1}" if place > former + 1 else ""
            is_return = str(error).startswith("new-line character")  # The library's advice is for programmers.
            reason = "a carriage return outside of quotes: make it a line feed, or remove it" if is_return else error
            problems.add("csv", path, place, f"{reason}{begun}")
        else:
            yield place, row


def _objects(path: Path, columns: Columns | None, problems: Problems) -> Iterator[Row]:
    if columns is not None and not isinstance(columns[0], str):
        raise UserError(f'{path}: data.columns = {list(columns)}: JSONL has names: take e.g. ["en", "fr"]')
    names: Sequence[str] = ("source", "target") if columns is None else tuple(map(str, columns))
    for number, line in readable_lines(path, problems):
        if line is None:
            continue
        if not line.strip():
            yield number, ("", "")
            continue
        if number == 1 and JSON_ARRAY.match(line):
            raise UserError(f"{path} is a JSON array: write an object a line, e.g. with jq -c '.[]'")
        try:
            record = json.loads(line)
        except RecursionError:
            problems.add("json", path, number, "not JSON: too deeply nested")
            continue
        except ValueError as error:
            # Python's message about a number is for programmers.
            reason = error if isinstance(error, json.JSONDecodeError) else "a number of too many digits"
            problems.add("json", path, number, f"not JSON: {reason}")
            continue
        try:
            yield number, [_text_of(record, name) for name in names]
        except ValueError as error:
            problems.add("json", path, number, str(error))


def _text_of(record: Any, name: str) -> str:
    """Returns the text of a key, or of keys of nested objects: "translation.en"; null is an empty text.

    Raises:
        ValueError: there is no such key, or its value is not a text.
    """
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")
    value: Any = record
    for part in [name] if name in record else name.split("."):
        value = value.get(part, ...) if isinstance(value, dict) else ...
    if value is ...:
        raise ValueError(f"there is no {name!r} among {', '.join(map(repr, list(record)[:20])) or 'no keys'}")
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{name!r} is {reprlib.repr(value)}, not a text")
    _refuse_broken(name, value)
    return value


def _refuse_broken(name: str, text: str) -> None:
    """Raises ValueError: a text can't be written as UTF-8, or has a NUL."""
    try:
        text.encode()
        is_whole = "\0" not in text
    except UnicodeEncodeError:
        is_whole = False
    if not is_whole:
        raise ValueError(f"{name!r} has half a surrogate pair or a NUL")


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


class PairReader:
    """Reads the pairs of a split, in file order, without the white space around them. Each iteration reads the files.

    Attributes:
        num_empty: pairs that the last iteration left out because a side is empty.
        notes: lines about changes that the last iteration made to the files' content.
    """

    def __init__(self, files: CorpusFiles) -> None:
        self._files = files if isinstance(files, SplitFiles) else SplitFiles(**dict(files))
        self.num_empty = 0
        self.notes: list[str] = []

    def __iter__(self) -> Iterator[Pair]:
        """Yields the pairs. Raises UserError: a missing file, unequal files; at the end: all bad rows together."""
        problems, part = Problems(), self._files.part
        self.num_empty, self.notes = 0, []
        for path, number, (source, target) in self._rows(problems):
            pair = Pair(source.strip(), target.strip())
            is_here = part is None or _split_of_source(pair.source, part.shares) == part.name
            if pair.source and pair.target:
                if is_here:
                    yield pair
            elif self._files.drop_empty:
                self.num_empty += is_here
            else:
                empty = "the source is" if pair.target else "the target is" if pair.source else "both sides are"
                problems.add("empty", path, number, f"{empty} empty")
        problems.raise_if_any()

    def _rows(self, problems: Problems) -> Iterator[tuple[Path, int, Sequence[str]]]:
        """Yields each row after its file and line."""
        files = self._files
        for path in map(Path, files.pairs or ()):
            for number, cells in _rows_of(path, files.columns, problems, self.notes):
                yield path, number, cells
        for source, target in zip(map(Path, files.source or ()), map(Path, files.target or ()), strict=True):
            for number, cells in _parallel_rows(source, target, problems):
                yield source if not cells[0].strip() else target, number, cells


def read_pairs(files: CorpusFiles) -> Iterator[Pair]:
    """Yields the pairs of a split, as `PairReader` does."""
    return iter(PairReader(files))


def in_chunks(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Yields lists of CHUNK_ITEMS items; the last may be shorter."""
    iterator = iter(items)
    while chunk := list(islice(iterator, CHUNK_ITEMS)):
        yield chunk


def is_in_memory(data: object) -> TypeGuard[InMemoryPairs]:
    """Returns True for pairs in memory, and False for the names of files, in any form that a recipe may have."""
    if isinstance(data, list | tuple) and data and all(isinstance(each, str | os.PathLike) for each in data):
        return False
    return isinstance(data, Iterable) and not isinstance(data, str | bytes | Mapping | os.PathLike | Table)


def pairs_in_memory(name: str, data: InMemoryPairs) -> list[Pair]:
    """Returns pairs that were given as (source, target) each, without the white space around the texts.

    Args:
        name: name of the data in errors, where places count from 0, as in Python.

    Raises:
        UserError: an item is no pair of texts, or a text can't be written as UTF-8.
    """
    pairs = []
    if not isinstance(data, Iterable):
        raise UserError(f"{name}={shown(data)}: must be files of pairs, or pairs (source, target)")
    if hasattr(data, "columns"):  # it would be iterated over by its columns
        raise UserError(f"{name} is a data frame: give its rows, such as frame[['en', 'fr']].values.tolist()")
    for place, item in enumerate(data):
        texts = () if isinstance(item, str | Mapping) or not isinstance(item, Iterable) else tuple(item)
        if len(texts) != 2 or not all(isinstance(text, str) for text in texts):
            raise UserError(f"{name}[{place}] = {reprlib.repr(item)}: must be a pair of texts, (source, target)")
        try:
            for side, text in zip(("source", "target"), texts, strict=True):
                _refuse_broken(side, text)
        except ValueError as error:
            raise UserError(f"{name}[{place}]: {error}: remove the character, or the pair") from None
        pairs.append(Pair(*(str(text).strip() for text in texts)))
    if not pairs:
        raise UserError(f"{name} has no pairs")
    return pairs


def no_pairs(files: CorpusFiles) -> UserError:
    """Returns the error for files without a pair."""
    part = files.part if isinstance(files, SplitFiles) else None
    if part is None:
        return UserError(f"{files} has no pairs")
    if part.name == "train":
        return UserError(f"{files} has no pairs: lower the shares of data.split, or give more pairs")
    share = getattr(part.shares, part.name)
    return UserError(f"{files} has no pairs: raise data.split.{part.name} = {share:g}, or give more pairs")


def _split_of_source(source: str, shares: SplitShares) -> Split:
    """Returns the split of a source, which depends neither on its case nor on its place in the file."""
    key = unicodedata.normalize("NFC", source).casefold().encode("utf-8", "surrogatepass")
    place = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest()) / 2**64
    if place < shares.validation:
        return "validation"
    return "test" if place < shares.validation + shares.test else "train"


def is_measurable(pair: Pair) -> bool:
    """Returns True if a held-out pair can be decoded and measured in reasonable time."""
    return len(pair.source) <= MOST_CHARACTERS and len(pair.target) <= MOST_CHARACTERS


def group_references(pairs: Iterable[Pair]) -> list[Example]:
    """Returns an example per distinct source, in order of first appearance, with its distinct targets in order."""
    grouped: dict[str, dict[str, None]] = {}
    for pair in pairs:
        grouped.setdefault(pair.source, {})[pair.target] = None
    return [Example(source, tuple(targets)) for source, targets in grouped.items()]


def sample_evenly(examples: Sequence[Example], count: int | None) -> list[Example]:
    """Returns `count` examples at even distances, always the same ones; all if count is None or not smaller."""
    if count is None or count >= len(examples):
        return list(examples)
    return [examples[index * len(examples) // count] for index in range(count)]


def num_words(text: str) -> int:
    """Returns the number of words and punctuation marks of a text: `don't` is one, `x.y` three."""
    return len(WORD_OR_MARK.findall(text))


def num_words_and_end(target: str) -> int:
    """Returns the number of words of a target, and one more for its end."""
    return len(target.split()) + 1
