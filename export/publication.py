"""Publishes a folder whole or not at all: it is written aside, and renamed when everything in it was verified."""

import contextlib
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from attendant.runtime.bundle.manifest import MANIFEST_NAME
from attendant.runtime.errors import UserError
from attendant.runtime.files import new_folder


def refuse_occupied(output: Path, *, force: bool, marker: str = MANIFEST_NAME) -> None:
    """Refuses an output that exists, before any work is done for it.

    Args:
        marker: a file that every folder of this kind has; `force` replaces no folder without it.

    Raises:
        UserError: it exists and `force` is not set, or it is something else.
    """
    if not output.exists() and not output.is_symlink():
        return
    if not force:
        raise UserError(f"{output} exists already: add --force to replace it, or name another folder")
    is_marked = output.is_dir() and not output.is_symlink() and (output / marker).is_file()
    if not is_marked and not (output.is_dir() and not any(output.iterdir())):
        raise UserError(f"{output} exists and has no {marker}, so --force leaves it: remove it yourself")


@contextlib.contextmanager
def published(output: Path, *, force: bool, marker: str = MANIFEST_NAME) -> Iterator[Path]:
    """A new folder beside `output` that takes its place when the block ends well, and vanishes when it does not.

    Raises:
        UserError: `output` is occupied, or it can't be written.
    """
    refuse_occupied(output, force=force, marker=marker)
    with new_folder(output.absolute(), put=partial(_take_place, force=force, marker=marker)) as folder:
        yield folder


def _take_place(folder: Path, output: Path, *, force: bool, marker: str) -> None:
    refuse_occupied(output, force=force, marker=marker)  # it may have appeared in the meantime
    replaced = None
    if output.exists():
        replaced = folder.with_name(folder.name.replace(".partial-", ".replaced-"))
        output.rename(replaced)
    try:
        folder.rename(output)
    except BaseException:
        if replaced is not None:
            replaced.rename(output)
        raise
    if replaced is not None:
        shutil.rmtree(replaced, ignore_errors=True)
