"""Reads the lines of texts, plain or compressed; all bad lines are reported together, with file, line and reason."""

import bz2
import gzip
import lzma
import zlib
from bisect import insort
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, Final

from attendant.runtime.errors import UserError, one_line
from attendant.runtime.files import reading_error

MAX_SHOWN: Final = 10  # Bad lines that are named; the others are counted.

# The compression is read from a file's first bytes, because names lie.
OPENERS: Final[dict[bytes, Any]] = {b"\x1f\x8b": gzip.open, b"\xfd7zXZ\x00": lzma.open, b"BZh": bz2.open}
# A block, or the end of an empty file, follows "BZh" and a digit; a text may begin with "BZh" alone.
BZIP2_PARTS: Final = (b"1AY&SY", b"\x17rE8P\x90")
NOT_TEXT: Final = {
    b"PK\x03\x04": "is a zip archive or a spreadsheet: unpack it, or save it as TSV or CSV",
    b"\x28\xb5\x2f\xfd": "is compressed by zstd: unpack it (unzstd), or take gzip or xz",
    **dict.fromkeys((b"PAR1", b"ARROW1"), "is a Parquet or Arrow file: write it as TSV, CSV or JSONL"),
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": "is a spreadsheet or document of Office: save it as TSV or CSV",
    b"%PDF-": "is a PDF: write its texts as TSV, CSV or JSONL",
    **dict.fromkeys((b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07"), "is an archive (7z, RAR): unpack it"),
    b"\x04\x22\x4d\x18": "is compressed by LZ4: unpack it (unlz4), or take gzip or xz",
    b"\xff\xfe\0\0": "is UTF-32: convert it, e.g. with iconv -f UTF-32 -t UTF-8",
    b"\xff\xfe": "is UTF-16: convert it, e.g. with iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "is UTF-16: convert it, e.g. with iconv -f UTF-16 -t UTF-8",
}
TAR_MAGIC, TAR_PLACE = b"ustar", 257
LAST_CONTROL, MANY_CONTROLS = 6, 0.25  # NUL and control characters; their share of a file's first bytes.

COMPRESSIONS: Final = (".gz", ".xz", ".bz2")
JSON_SUFFIXES: Final = (".jsonl", ".ndjson", ".json")
TABLES: Final = (".csv", *JSON_SUFFIXES)

MORE_COLUMNS: Final = (
    'of more columns name two: data.columns = [1, 2], or ["en", "fr"] where a header row has names (in an option: '
    "FILE[1,2] or FILE[en,fr])"
)
REMEDIES: Final = {  # By the kind of a bad line.
    "columns": f"a pair has two columns: source, one tab, target; {MORE_COLUMNS}",
    "csv": "a pair has two columns, separated by a comma, and a field with commas or quotes is in quotes; "
    f"{MORE_COLUMNS}",
    "empty": "fill it in, drop the pair, or set data.drop_empty = true in the recipe",
    "encoding": "convert the file to UTF-8, e.g. with iconv",
    "json": 'each line must be an object, e.g. {"en": "...", "fr": "..."}, with data.columns = ["en", "fr"]',
    "vector": "finite numbers make a vector: mend the line or remove it",
    "nul": "it is no text there: remove the character",
}


class Problems:
    """The bad lines of some files: all are counted, and the first MAX_SHOWN are named."""

    def __init__(self) -> None:
        self._first: list[tuple[int, int, str]] = []
        self._counts: Counter[str] = Counter()
        self._files: dict[Path, int] = {}

    def add(self, kind: str, path: Path, number: int, text: str) -> None:
        """Counts a bad line.

        Args:
            kind: a key of REMEDIES.
            number: number of the line, from 1; a reader that looks ahead may add a later line first.
            text: the problem.
        """
        self._counts[kind] += 1
        place = self._files.setdefault(path, len(self._files))
        insort(self._first, (place, number, f"{path}:{number}: {one_line(text)}"))
        del self._first[MAX_SHOWN:]

    def raise_if_any(self) -> None:
        """Raises UserError if there are bad lines. A single one is one line."""
        count = self._counts.total()
        if not count:
            return
        remedies = "; ".join(REMEDIES[kind] for kind in sorted(self._counts))
        shown = [line for _, _, line in self._first]
        if count == 1:
            raise UserError(f"{shown[0]}: {remedies}")
        more = [f"and {count - len(shown):,} more"] if count > len(shown) else []
        raise UserError(f"{count:,} bad lines: {remedies}", [*shown, *more])


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the lines of a file in UTF-8, counted from 1, without their ends.

    Raises:
        UserError: there is no such file, it can't be read, it is not a text, its lines end in carriage returns; at the
            end: lines were not UTF-8.
    """
    problems = Problems()
    for number, line in readable_lines(path, problems):
        if line is not None:
            yield number, line
    problems.raise_if_any()


def readable_lines(path: Path, problems: Problems) -> Iterator[tuple[int, str | None]]:
    """Yields lines as `numbered_lines` does, and None for a bad line: not UTF-8, or with a NUL.

    Lines end at line feeds only: str.splitlines also cuts at characters that texts contain.
    """
    try:
        with _opened(path) as file:
            for number, raw in enumerate(file, 1):
                if number == 1 and b"\r" in raw.rstrip(b"\r\n") and not file.peek(1):
                    raise UserError(f"{path}: its lines end in carriage returns alone: convert them to line feeds")
                try:
                    text = raw.removeprefix(BOM_UTF8).decode()  # Files that are joined have one in the middle too.
                except UnicodeDecodeError as error:
                    text = None
                    problem = f"byte {error.start + 1} of the line is not UTF-8 ({error.reason})"
                    problems.add("encoding", path, number, problem)
                if text is not None and "\0" in text:
                    problems.add("nul", path, number, f"character {text.index(chr(0)) + 1} is a NUL")
                    text = None
                yield number, None if text is None else text.rstrip("\r\n")
    except FileNotFoundError:
        where = "" if path.is_absolute() else f" in {Path.cwd()}, where relative paths start"
        raise UserError(f"{path}: there is no such file{where}") from None
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise UserError(f"{path}: can't be read: {reading_error(error)}") from None


@contextmanager
def _opened(path: Path) -> Iterator[BufferedReader]:
    """Opens a file, decompressed. Raises UserError: it is not a text."""
    with path.open("rb") as raw:
        head = raw.peek(16)
        file: Any = raw
        for magic, opener in OPENERS.items():
            if head.startswith(magic) and (magic != b"BZh" or head[4:10] in BZIP2_PARTS):
                file = opener(raw)
        with file:
            head = file.peek(512)
            for magic, reason in NOT_TEXT.items():
                if head.startswith(magic):
                    raise UserError(f"{path} {reason}")
            if head[TAR_PLACE:].startswith(TAR_MAGIC):
                raise UserError(f"{path} is a tar archive: unpack it")
            # A half of each Latin, Greek, Cyrillic, Hebrew or Arabic letter in UTF-16 is such a character.
            if sum(byte <= LAST_CONTROL for byte in head) > MANY_CONTROLS * len(head):
                code = "UTF-16BE" if head[0] <= LAST_CONTROL else "UTF-16LE"
                raise UserError(
                    f"{path} has control characters as UTF-16 has: convert it, e.g. with iconv -f {code} -t UTF-8"
                )
            yield file


def format_of(path: Path) -> str:
    """Returns the suffix of a file's name in lower case, without that of its compression."""
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() not in COMPRESSIONS]
    return suffixes[-1] if suffixes else ""


def source_lines(path: Path) -> Iterator[str]:
    """Yields the lines of a file of sources, one per line.

    Raises:
        UserError: the file is a table, or one of the errors of `numbered_lines`.
    """
    if format_of(path) in TABLES:
        raise UserError(f"{path}: sources are read one per line, and this is a table: write its sources to a text file")
    return (line for _, line in numbered_lines(path))


def read_sources(path: Path) -> list[str]:
    """Returns the sources of a file, one per line, of a `.tsv` its first column; empty lines are left out.

    Raises:
        UserError: no such file, no source in it, bad UTF-8; a table of another format.
    """
    has_columns = format_of(path) == ".tsv"
    lines = (line.partition("\t")[0] if has_columns else line for line in source_lines(path))
    sources = [source for line in lines if (source := line.strip())]
    if not sources:
        raise UserError(f"{path}: there is no source in it: write one per line")
    return sources
