"""Reads an untrusted folder: follows no link, never blocks, and reads no more than the limits.

A digest shows that a file is the one that its manifest lists. It does not show that the bundle is harmless, because its
author writes the digests, too.
"""

import json
import math
import os
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, Final, NoReturn

MIB: Final = 2**20
MAX_MANIFEST_BYTES: Final = 4 * MIB
MAX_TEXT_BYTES: Final = 64 * MIB  # Limit of a tokenizer or the golden examples.
MAX_GRAPH_BYTES: Final = 2**31  # The largest protobuf message.
MAX_BUNDLE_BYTES: Final = 8 * MAX_GRAPH_BYTES
MAX_ENTRIES: Final = 64  # Files and folders of a bundle. Three precisions need fourteen.
MAX_DEPTH: Final = 64  # Nesting of lists and objects in JSON.
_KINDS: Final = {
    stat.S_IFLNK: "a symbolic link: put the file itself in its place, e.g. by cp -rL",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


class Unfit(ValueError):
    """A file or its content that must not be read; the message has the reason, without the name."""


def files_in(folder: Path) -> tuple[dict[str, int], list[str]]:
    """Returns the sizes of the files below a folder by relative name, and a line for each entry that is no file.

    Raises:
        Unfit: there are far more entries than a bundle has.
    """
    files: dict[str, int] = {}
    others: list[str] = []
    for number, (name, status) in enumerate(_walk(folder, ""), 1):
        if number > MAX_ENTRIES:
            raise Unfit(f"holds more than {MAX_ENTRIES} files and folders: this is no bundle")
        if stat.S_ISREG(status.st_mode):
            files[name] = status.st_size
        elif not stat.S_ISDIR(status.st_mode):
            others.append(f"{name}: {_kind(status)}; a bundle holds files alone")
    return files, sorted(others)


def _walk(folder: Path, prefix: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yields the names below a folder with their status; enters folders, but not links."""
    with os.scandir(folder) as entries:
        for entry in entries:
            name, status = prefix + entry.name, entry.stat(follow_symlinks=False)
            yield name, status
            if stat.S_ISDIR(status.st_mode):
                yield from _walk(folder / entry.name, f"{name}/")


def _kind(status: os.stat_result) -> str:
    return _KINDS.get(stat.S_IFMT(status.st_mode), "no file")


def open_file(path: Path, max_bytes: int) -> BufferedReader:
    """Opens a regular file of at most `max_bytes`. Never blocks, as on a FIFO without a writer or a tape.

    Raises:
        Unfit: it is a link, a FIFO, a device, or larger.
        OSError: it is missing, or can't be read.
    """
    before = os.lstat(path)
    if not stat.S_ISREG(before.st_mode):
        raise Unfit(_kind(before))
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    status = os.fstat(file.fileno())
    if stat.S_ISREG(status.st_mode) and status.st_size <= max_bytes:
        return file
    file.close()
    if not stat.S_ISREG(status.st_mode):
        raise Unfit(_kind(status))
    raise Unfit(f"{status.st_size} bytes, may have {max_bytes}")


def read_file(path: Path, max_bytes: int) -> bytes:
    """Returns the content of a regular file. Raises as `open_file` does."""
    with open_file(path, max_bytes) as file:
        # Python allocates all that it may read, so `max_bytes` could be too much for the process's limit of memory.
        size = os.fstat(file.fileno()).st_size
        content = file.read(size + 1)
    if len(content) > size:
        raise Unfit("it grows while it is read")
    return content


def parse_json(text: bytes | str) -> Any:
    """Parses JSON. Raises Unfit: it is invalid, or has repeated keys, infinite numbers or nesting beyond MAX_DEPTH."""
    try:
        content = json.loads(
            text, parse_constant=_no_number, parse_float=_finite, object_pairs_hook=_object_without_repeated_keys
        )
    except RecursionError:
        raise Unfit(f"nested deeper than {MAX_DEPTH}") from None
    except Unfit:
        raise
    except ValueError as error:
        raise Unfit(str(error)) from None
    level = [content] if isinstance(content, dict | list) else []
    for _ in range(MAX_DEPTH):
        # A key is a text, so only the values of an object can have parts.
        parts = (value.values() if isinstance(value, dict) else value for value in level)
        level = [part for values in parts for part in values if isinstance(part, dict | list)]
        if not level:
            return content
    raise Unfit(f"nested deeper than {MAX_DEPTH}")


def _object_without_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        seen: set[str] = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise Unfit(f"the key {repeated!r} occurs twice in one object")
    return content


def _no_number(name: str) -> NoReturn:
    raise Unfit(f"{name} is no number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise Unfit(f"{text} is too large for a number")
    return value
