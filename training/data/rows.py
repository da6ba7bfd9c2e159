"""Rows of pairs in files of several formats: TSV, CSV, and JSONL with named keys."""

import csv
import json
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

from attendant.runtime.errors import UserError
from attendant.training.data.config import Columns
from attendant.training.data.lines import Problems, readable_lines

COMPRESSIONS: Final = (".gz", ".xz", ".bz2")
NUM_LOOKED_AT: Final = 100
"""Rows at the beginning of a file by which its delimiter and its quotes are judged."""

DELIMITERS: Final = (",", ";", "\t")
LONGEST_FIELD: Final = 2**31 - 1

NAMES = """
    source target src tgt trg src_text tgt_text source_text target_text input output inputs outputs text texts label
    labels translation translated reference original summary document question answer sentence sentence1 sentence2
    word words phonemes phones pronunciation ipa transcription spelling key value
    english french german spanish italian portuguese dutch polish russian ukrainian chinese japanese korean arabic
    en fr de es it pt nl pl cs ru uk zh ja ko ar tr sv da fi no nb hu ro el he hi vi th id bg hr sr sk sl lt lv et fa ca
    eng fra fre deu ger spa ita por nld pol ces rus ukr zho jpn kor ara
"""
COLUMN_NAMES: Final = frozenset(NAMES.split())
"""Cells, in lower case, that head a column more often than they are a text of a pair."""

Row = tuple[int, Sequence[str]]
"""The number of a row's last line, and its source and target."""


def rows_of(path: Path, columns: Columns | None, problems: Problems, notes: list[str]) -> Iterator[Row]:
    """Yields the pairs of a file, as they stand in it; bad rows are added to `problems`.

    The name says the format, also before .gz and the like: .csv; .jsonl, .ndjson or .json; anything else is a TSV.

    Args:
        columns: the two names of a header row, the keys of JSONL, or numbers from 1; None: there are two columns.
        notes: takes a line for each thing that was read otherwise than it stands.

    Raises:
        UserError: the file can't be read, or lacks a column; the first row looks like a header.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() not in COMPRESSIONS]
    suffix = suffixes[-1] if suffixes else ""
    if suffix in (".jsonl", ".ndjson", ".json"):
        return _objects(path, columns, problems)
    if suffix == ".csv":
        return _chosen(path, _csv_rows(path, problems), columns, problems, "csv")
    return _chosen(path, _tsv_rows(path, problems, notes), columns, problems, "columns")


def _chosen(path: Path, rows: Iterator[Row], columns: Columns | None, problems: Problems, kind: str) -> Iterator[Row]:
    """Yields the two columns of each row."""
    first = next(rows, None)
    if first is None:
        return
    width = 2
    places: tuple[int, ...] = (0, 1)
    if columns is None:
        _refuse_header(path, first[1])
        rows = chain([first], rows)
    elif isinstance(columns[0], str):
        names = [cell.strip() for cell in first[1]]
        width = len(names)
        places = tuple(_place_of(path, str(name), names) for name in columns)
    else:
        places = tuple(int(number) - 1 for number in columns)
        width = max(places) + 1
        rows = chain([first], rows)
    for number, cells in rows:
        if not any(map(str.strip, cells)):
            yield number, ("", "")
        elif len(cells) != width if columns is None else len(cells) < width:
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


def _refuse_header(path: Path, cells: Sequence[str]) -> None:
    names = [cell.strip().strip('"') for cell in cells]
    if len(names) >= 2 and all(name.casefold() in COLUMN_NAMES for name in names[:2]) and len(set(names)) == len(names):
        raise UserError(
            f"{path}:1: {' and '.join(map(repr, names[:2]))} look like the names of columns: set data.columns = "
            f"{json.dumps(names[:2], ensure_ascii=False)} (in an option: '{path.name}[{names[0]},{names[1]}]'); if they"
            " are a pair, move it away from the first line"
        )


def _hint(cells: Sequence[str]) -> str:
    """Returns why a row may have a wrong number of columns."""
    if any("\r" in cell for cell in cells):
        return "; its lines end in carriage returns alone: convert them to line feeds"
    if len(cells) != 1:
        return ""
    text = cells[0].strip()
    if text.startswith("{") and text.endswith("}"):
        return "; JSON is read from files named .jsonl"
    if "," in text or ";" in text:
        return "; commas separate columns in files named .csv"
    return ""


def _tsv_rows(path: Path, problems: Problems, notes: list[str]) -> Iterator[Row]:
    rows = ((number, line.split("\t")) for number, line in readable_lines(path, problems) if line is not None)
    head = list(islice(rows, NUM_LOOKED_AT))
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
    lines = (f"{line}\n" for _, line in readable_lines(path, problems) if line is not None)
    head = list(islice(lines, NUM_LOOKED_AT))
    csv.field_size_limit(LONGEST_FIELD)
    reader = csv.reader(chain(head, lines), delimiter=_delimiter(head), strict=True)
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            problems.add("csv", path, reader.line_num, str(error))
        else:
            yield reader.line_num, row


def _delimiter(head: Sequence[str]) -> str:
    """Returns the delimiter by which most of the first lines have several columns."""

    def num_rows(delimiter: str) -> int:
        return sum(len(row) > 1 for row in csv.reader(head, delimiter=delimiter))

    return max(DELIMITERS, key=num_rows)


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
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == 1 and line.lstrip().startswith("["):
                raise UserError(f"{path} is a JSON array: write an object a line, e.g. with jq -c '.[]'") from None
            problems.add("json", path, number, f"not JSON: {error}")
            continue
        if not isinstance(record, dict):
            problems.add("json", path, number, "not a JSON object")
            continue
        values = [_value(record, name) for name in names]
        wrong = next(
            (problem for name, value in zip(names, values, strict=True) if (problem := _wrong(name, value, record))), ""
        )
        if wrong:
            problems.add("json", path, number, wrong)
        else:
            yield number, [value or "" for value in values]


def _value(record: dict[str, Any], name: str) -> Any:
    """Returns the value of a key, or of keys in objects within: "translation.en". Ellipsis stands for no such key."""
    if name in record:
        return record[name]
    value: Any = record
    for part in name.split("."):
        value = value.get(part, ...) if isinstance(value, dict) else ...
    return value


def _wrong(name: str, value: Any, record: dict[str, Any]) -> str:
    """Returns what is wrong with a value; null is an empty text."""
    if value is ...:
        return f"there is no {name!r} among {', '.join(map(repr, list(record)[:20])) or 'no keys'}"
    if value is not None and not isinstance(value, str):
        return f"{name!r} is not a text"
    if value is not None and not _is_utf8(value):
        return f"{name!r} has half a surrogate pair or a NUL"
    return ""


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text
