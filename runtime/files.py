"""Files that must be whole: what they are known by, and how they get to the disk.

A file or folder is written aside, under a hidden name, flushed to the disk and renamed. Whatever fails meanwhile, be it
a disk that fills or a process that is killed, what stood there before still stands, and nothing is half written.
"""

import errno
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from attendant.runtime.errors import UserError

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
UNWRITABLE = FULL | READ_ONLY | {errno.EIO, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST}
UNMAKABLE = UNWRITABLE | {errno.ENOENT}
"""Also of what is only made, not filled: its folder is missing, or is no place for files, like those of /proc."""


class CantWrite(UserError):
    """A file or folder that can't be written where it is wanted.

    Attributes:
        number: the operating system's, of module errno; None: it gave none.
    """

    def __init__(self, path: Path | str, reason: str, number: int | None = None) -> None:
        remedy = ""
        if number in FULL:
            remedy = ": make room, or name another place"
        elif number in READ_ONLY:
            remedy = ": name a place that you may write to"
        super().__init__(f"{path}: can't be written: {reason}{remedy}")
        self.number = number


@contextmanager
def told_of(path: Path, numbers: Container[int] = UNWRITABLE) -> Iterator[None]:
    """Around writing: the operating system's refusal becomes a line of text.

    Args:
        numbers: of the refusals that it becomes one for.

    Raises:
        CantWrite: the disk is full, the place is read-only, and the like.
    """
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.errno in numbers:
            raise CantWrite(path, os.strerror(error.errno), error.errno) from None
        raise


@contextmanager
def new_file(path: Path, aside: Path | None = None) -> Iterator[IO[str]]:
    """A text file, in UTF-8, that takes its name when the block ends well and vanishes when it does not.

    Its name until then is one that no other process chooses, and is not followed if it is a link.

    Args:
        aside: the folder in which it is written meanwhile, on the same file system; None: that of `path`.

    Raises:
        CantWrite: the disk is full, the folder is read-only.
    """
    written = unused_name(path if aside is None else aside / path.name)
    with told_of(path):
        try:
            with told_of(path, UNMAKABLE):
                file = written.open("x", encoding="utf-8", newline="\n")
            with file:
                yield file
            flush_to_disk(written)
            written.replace(path)
        finally:
            with suppress(OSError):
                written.unlink()


def unused_name(path: Path) -> Path:
    """Returns a hidden name beside a path, for what will take its place."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.writing")


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Keeps other processes that ask for it from writing to a folder, which is made if it is missing.

    Raises:
        UserError: another process is writing there; the message names it.
        CantWrite: the folder can't be made.
    """
    with told_of(folder, UNMAKABLE):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        lock(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def lock(descriptor: int, path: Path) -> None:
    """Locks an open file or folder until its descriptor is closed.

    Raises:
        UserError: another process has locked it; the message names it.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(
            f"{path}: {_holder(descriptor)} is writing to it; wait for its end, or name another --output"
        ) from None
    except OSError:  # a file system without locks
        return


def _holder(descriptor: int) -> str:
    """The process that has locked a file, as far as the system tells."""
    status = os.fstat(descriptor)
    file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():
            if file in line.split() and "FLOCK" in line and "->" not in line:
                return f"process {line.split()[4]}"
    return "another process"


def write_text(path: Path, text: str) -> None:
    """Writes a file whole or not at all. Raises CantWrite."""
    with new_file(path) as file:
        file.write(text)


def write_json(path: Path, content: Any) -> None:
    """Writes a value as JSON, its keys sorted, whole or not at all. Raises CantWrite."""
    write_text(path, json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


@contextmanager
def new_folder(path: Path, put: Callable[[Path, Path], object] = Path.rename) -> Iterator[Path]:
    """A folder beside `path` that takes its place when the block ends well, and vanishes when it does not.

    Args:
        put: renames the first path to the second, which stands already perhaps.

    Raises:
        CantWrite: the disk is full, the place is read-only.
    """
    made = [parent for parent in path.parents if not parent.exists()]
    with told_of(path):
        aside = None
        try:
            with told_of(path.parent, UNMAKABLE):
                path.parent.mkdir(parents=True, exist_ok=True)
            with told_of(path, UNMAKABLE):
                aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.partial-", dir=path.parent))
            yield aside
            # A temporary folder is its owner's alone; this one is as readable as anything else that the user makes.
            mask = os.umask(0)
            os.umask(mask)
            aside.chmod(0o777 & ~mask)
            # Everything reaches the disk before the name does.
            for written in [*aside.rglob("*"), aside]:
                flush_to_disk(written)
            put(aside, path)
            flush_to_disk(path.parent)
        finally:
            if aside is not None:
                shutil.rmtree(aside, ignore_errors=True)
            # Where nothing came of it, the folders above it go too.
            with suppress(OSError):
                for parent in made:
                    parent.rmdir()


def unless_there(folder: Path, path: Path) -> None:
    """How `new_folder` puts a folder that anybody would make alike: one who was as fast may have put it there."""
    if not path.exists():
        folder.rename(path)


def sha256_of(path: Path) -> str:
    """The sha256 of a file's content, in hexadecimal. Raises UserError where it can't be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        where = "" if path.is_absolute() else f" in {Path.cwd()}"
        raise UserError(f"{path}: there is no such file{where}") from None
    except OSError as error:
        raise UserError(f"{path}: can't be read: {error.strerror}") from None


def flush_to_disk(path: Path) -> None:
    """Returns when a written file, or the names in a folder, would survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
