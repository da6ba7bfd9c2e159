"""Files and folders that are written completely or not at all.

A file or folder is written under a hidden name, flushed to the disk and renamed. If that fails, because the disk fills
or the process is killed, the former content is still there, and no half-written file.
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

from attendant.runtime.errors import UserError, shown

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
DENIED = frozenset({errno.EACCES, errno.EPERM})
READ_ONLY = DENIED | {errno.EROFS}
TAKEN = frozenset({errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY, errno.EBUSY, errno.EXDEV})
"""Errors of a name that belongs to something else: also a folder in which another file system is mounted."""

UNWRITABLE = FULL | READ_ONLY | TAKEN | {errno.EIO, errno.ENXIO, errno.ENAMETOOLONG}
UNMAKABLE = UNWRITABLE | {errno.ENOENT}
"""Errors of creating a file: also a missing folder, or one that holds no files, as in /proc."""


class CantWrite(UserError):
    """A file or folder that can't be written; `number` is the operating system's errno."""

    def __init__(self, path: Path | str, number: int) -> None:
        remedy = ""
        if number in FULL:
            remedy = ": make room, or name another place"
        elif number in READ_ONLY:
            remedy = ": name a place that you may write to"
        super().__init__(f"{path}: can't be written: {os.strerror(number)}{remedy}")
        self.number = number


def reading_error(error: Exception) -> str:
    """Returns the reason why a file or folder can't be read, and the remedy if its permissions are the reason."""
    if not isinstance(error, OSError):  # the reader's own message about the content
        return str(error)
    remedy = f": give user {os.geteuid()} access to it and to its folders" if error.errno in DENIED else ""
    return f"{error.strerror or error}{remedy}"


@contextmanager
def translate_os_errors(path: Path, numbers: Container[int] = UNWRITABLE) -> Iterator[None]:
    """Translates the operating system's errors of writing `path` to CantWrite.

    Args:
        numbers: the errno of errors that are translated.

    Raises:
        CantWrite: the disk is full, the place is read-only, and the like.
    """
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.errno in numbers:
            raise CantWrite(path, error.errno) from None
        raise


@contextmanager
def new_file(path: Path, aside: Path | None = None) -> Iterator[IO[str]]:
    """Opens a text file in UTF-8 that takes its name when the block succeeds, and is removed when it fails.

    Its temporary name is unique, and is not followed if it is a link. A device is written to as it is.

    Args:
        aside: the folder of the temporary file, on the same file system; if None, that of `path`.

    Raises:
        CantWrite: the disk is full, the folder is read-only.
    """
    written = unused_name(path if aside is None else aside / path.name)
    with translate_os_errors(path):
        if is_device(path):
            with path.open("a", encoding="utf-8", newline="\n") as file:
                yield file
            return
        try:
            with translate_os_errors(path, UNMAKABLE):
                file = written.open("x", encoding="utf-8", newline="\n")
            with file:
                yield file
            flush_to_disk(written)
            written.replace(path)
        finally:
            with suppress(OSError):
                written.unlink()


def is_device(path: Path) -> bool:
    """Returns True for a path that no file may replace: a device, a pipe or a stream, e.g. /dev/stdout."""
    is_special = path.exists() and not path.is_file() and not path.is_dir()
    return is_special or str(path.parent) in ("/dev", "/dev/fd", "/proc/self/fd")


def unused_name(path: Path) -> Path:
    """Returns a hidden temporary name in the folder of a path."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.writing")


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Locks a folder against other writers that use this function; makes the folder if it is missing.

    Raises:
        UserError: another process is writing there; the message names it.
        CantWrite: the folder can't be made.
    """
    with translate_os_errors(folder, UNMAKABLE):
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


@contextmanager
def taking_turns(path: Path) -> Iterator[None]:
    """Waits until no other such block has this file. Without effect on a file system without locks."""
    with path.open("rb") as file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _holder(descriptor: int) -> str:
    """Returns the process that has locked a file, as far as the system shows it."""
    status = os.fstat(descriptor)
    file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():
            if file in line.split() and "FLOCK" in line and "->" not in line:
                return f"process {line.split()[4]}"
    return "another process"


def path_of(field: str, value: object) -> Path:
    """Returns an argument as a path. Raises UserError: it is no path; the message names the argument."""
    name = os.fspath(value) if isinstance(value, str | os.PathLike) else value
    if not isinstance(name, str) or not name or "\0" in name:
        raise UserError(f"{field}={shown(value)}: must be a path")
    return Path(name)


def read_text(path: Path, name: str = "", remedy: str = "") -> str:
    """Returns the content of a text file, without a byte order mark.

    Args:
        name: how errors name the file; if empty, by its path.
        remedy: ends the message if the file can't be read.

    Raises:
        UserError: it can't be read, or is not UTF-8.
    """
    name = name or str(path)
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"{name}: can't be read: {reading_error(error)}{remedy}") from None
    except UnicodeDecodeError:
        raise UserError(f"{name}: can't be read: it is not UTF-8; convert it, e.g. with iconv") from None


def write_text(path: Path, text: str) -> None:
    """Writes a file completely or not at all. Raises CantWrite."""
    with new_file(path) as file:
        file.write(text)


def write_json(path: Path, content: Any) -> None:
    """Writes a value as JSON with sorted keys, completely or not at all. Raises CantWrite."""
    write_text(path, json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


@contextmanager
def new_folder(path: Path, put: Callable[[Path, Path], object] = Path.rename) -> Iterator[Path]:
    """Makes a folder that takes the place of `path` when the block succeeds, and is removed when it fails.

    Args:
        put: renames the first path to the second, which may exist.

    Raises:
        CantWrite: the disk is full, the place is read-only.
    """
    made = [parent for parent in path.parents if not parent.exists()]
    with translate_os_errors(path):
        aside = None
        try:
            with translate_os_errors(path.parent, UNMAKABLE):
                path.parent.mkdir(parents=True, exist_ok=True)
            with translate_os_errors(path, UNMAKABLE):
                aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.partial-", dir=path.parent))
            yield aside
            # A temporary folder is readable by its owner only.
            aside.chmod(masked(0o777))
            # Everything reaches the disk before the name does.
            for written in [*aside.rglob("*"), aside]:
                flush_to_disk(written)
            put(aside, path)
            flush_to_disk(path.parent)
        finally:
            if aside is not None:
                shutil.rmtree(aside, ignore_errors=True)
            # Empty parent folders are removed, too.
            with suppress(OSError):
                for parent in made:
                    parent.rmdir()


def masked(mode: int) -> int:
    """Returns the part of a mode that the user's mask allows for new files and folders."""
    mask = os.umask(0)
    os.umask(mask)
    return mode & ~mask


def unless_there(folder: Path, path: Path) -> None:
    """Renames a folder for `new_folder`, unless another process has already put the same content there."""
    if not path.exists():
        folder.rename(path)


def sha256_of(path: Path) -> str:
    """Returns the sha256 of a file's content, in hexadecimal. Raises UserError if it can't be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        where = "" if path.is_absolute() else f" in {Path.cwd()}"
        raise UserError(f"{path}: there is no such file{where}") from None
    except OSError as error:
        raise UserError(f"{path}: can't be read: {reading_error(error)}") from None


def flush_to_disk(path: Path) -> None:
    """Flushes a written file, or the names in a folder, so that they survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
