"""Files that torch or numpy has saved, read as tensors and plain values. Nothing that a file names is executed."""

import pickle
import re
import struct
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from attendant.runtime.errors import UserError

ARCHIVE_HEAD: Final = b"PK\x03\x04"
"""The first bytes of a zip archive. Its list of contents is at the end of the file."""

PICKLE_HEAD: Final = b"\x80"
"""The first byte of what torch saved before it wrote archives."""

UNREADABLE: Final = (
    pickle.UnpicklingError,
    zipfile.BadZipFile,
    struct.error,
    RuntimeError,
    ValueError,
    LookupError,
    EOFError,
    AttributeError,
    TypeError,
    AssertionError,
    OverflowError,
    MemoryError,
)
"""Errors that torch and numpy raise for content that they can't read."""

PLAIN_KINDS: Final = "biufU"
"""Kinds of numpy data types that are read: booleans, integers, floats and texts."""


def read_torch(path: Path, *plain: type) -> dict[str, Any]:
    """Returns a dictionary that torch has saved.

    torch's own unpickler reads it, which builds tensors and plain values and calls nothing that the file names. Scalars
    and arrays of numpy are read by functions of this file, as plain values.

    Args:
        plain: further classes that may be built, which hold data and do nothing.

    Raises:
        UserError: the file can't be read, is truncated, or names something else.
    """
    head = _refuse_truncated(path)
    try:
        with torch.serialization.safe_globals([*plain, *_NUMPY_READERS]):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UserError(f"{path}: can't be read: {error.strerror or error}") from None
    except UNREADABLE as error:
        if named := re.search(r"(?:GLOBAL|Unsupported class) (\S+)", str(error)):
            raise UserError(
                f"{path}: it is made of {named[1]}, which would have to be executed: save it anew as tensors, "
                "dictionaries, lists, text and numbers"
            ) from None
        if head == ARCHIVE_HEAD:
            _refuse_damaged(path)
        if head.startswith(PICKLE_HEAD) and _ends_early(error):
            raise _truncated(path) from None
        raise UserError(f"{path}: no checkpoint that torch has saved") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: no checkpoint: it holds a {type(content).__name__}")
    return content


def read_arrays(path: Path) -> dict[str, torch.Tensor]:
    """Returns the arrays of an archive that numpy has saved (.npz).

    Raises:
        UserError: the file can't be read, is truncated, or holds more than plain arrays.
    """
    head = _refuse_truncated(path)
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: torch.from_numpy(array) for name, array in archive.items()}
    except OSError as error:
        raise UserError(f"{path}: can't be read: {error.strerror or error}") from None
    except UNREADABLE:
        if head == ARCHIVE_HEAD:
            _refuse_damaged(path)
        raise UserError(f"{path}: no archive of plain arrays (.npz)") from None


def table_of(path: Path, checkpoint: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns a dictionary in a checkpoint. Raises UserError if there is none."""
    table = checkpoint.get(name)
    if not isinstance(table, dict):
        raise UserError(f"{path}: no checkpoint of this toolkit: it has no {name}")
    return table


def refuse_folder(path: Path, pattern: str) -> None:
    """Raises UserError, naming the checkpoints in it, if the path is a folder and must be a file."""
    if path.is_dir():
        raise UserError(f"{path}: is a folder: name {files_in(path, pattern)}")


def files_in(folder: Path, pattern: str) -> str:
    """Returns a choice of the files in a folder that match a pattern, or what the folder has in place of them."""
    matching, all_names = (sorted(path.name for path in folder.glob(each)) for each in (pattern, "*"))
    if matching:
        return f"one of its checkpoints: {_shortened(matching)}"
    contents = f"has {_shortened(all_names)}" if all_names else "is empty"
    return f"a checkpoint, {pattern}; this folder {contents}"


def _shortened(names: list[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _refuse_truncated(path: Path) -> bytes:
    """Returns the file's first bytes. Raises UserError if it can't be read or ends early."""
    try:
        with path.open("rb") as file:
            head = file.read(len(ARCHIVE_HEAD))
    except OSError as error:
        raise UserError(f"{path}: can't be read: {error.strerror}") from None
    if not head or (head == ARCHIVE_HEAD and not zipfile.is_zipfile(path)):
        raise _truncated(path)
    return head


def _truncated(path: Path) -> UserError:
    return UserError(f"{path}: is truncated: it ends after {path.stat().st_size:,} bytes; copy or download it again")


def _refuse_damaged(path: Path) -> None:
    """Raises UserError, naming the part, if an archive's contents don't have the checksums that it states."""
    try:
        with zipfile.ZipFile(path) as archive:
            part = archive.testzip()
    except (OSError, *UNREADABLE):
        part = "its list of contents"
    if part is not None:
        raise UserError(f"{path}: is damaged: {part} can't be read; copy or download it again")


def _ends_early(error: Exception) -> bool:
    """Returns whether an error of reading a pickle means that bytes are missing at its end."""
    return isinstance(error, EOFError | LookupError | struct.error) or bool(
        re.search("truncated|unexpected EOF", str(error))
    )


class _DataType:
    """Stands for `numpy.dtype` in a pickle."""

    def __init__(self, code: str, *_: object) -> None:
        self.code, self.order = code, "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = state[1]

    def values(self, content: bytes) -> np.ndarray:
        """Returns the values [N] that bytes hold. Raises UnpicklingError if they are not plain."""
        # An order of bytes is given for types that have one: | is for the others.
        data_type = np.dtype(f"{'' if self.order == '|' else self.order}{self.code}")
        if data_type.kind not in PLAIN_KINDS:
            raise pickle.UnpicklingError(f"GLOBAL numpy.{data_type.name}")
        return np.frombuffer(content, data_type)


class _Array:
    """Stands for an array of numpy in a pickle: its values, whose shape is not kept."""

    def __init__(self, *_: object) -> None:
        self.values: list[Any] = []

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, _, data_type, _, content = state
        self.values = data_type.values(_as_bytes(content)).tolist()


def _scalar(data_type: _DataType, content: Any) -> Any:
    """Returns a scalar of numpy as a plain value."""
    return data_type.values(_as_bytes(content)).tolist()[0]


def _as_bytes(content: Any) -> bytes:
    if not isinstance(content, bytes):
        raise pickle.UnpicklingError(f"GLOBAL numpy.object_ ({type(content).__name__})")
    return content


# numpy 2 has renamed the module.
_NUMPY_READERS: Final[Sequence[tuple[Callable[..., Any], str]]] = [
    (_DataType, "numpy.dtype"),
    (_Array, "numpy.ndarray"),
    *((_scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
    *((_Array, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")),
]
"""Functions that take the place of numpy's own in a pickle."""
