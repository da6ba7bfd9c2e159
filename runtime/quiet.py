"""Keeps native libraries from standard error, where they write past every log level."""

import contextlib
import os
import sys
from collections.abc import Iterator


class Said:
    """What was written to standard error; known when the context has ended."""

    text = ""


_saved: list[int] = []
"""Descriptors of the real standard error, while native code writes to a buffer instead."""


@contextlib.contextmanager
def quiet_stderr() -> Iterator[Said]:
    """Keeps what native code writes to standard error, for the whole process.

    Only while a model is loaded, before anything is served.
    """
    said = Said()
    # In memory: where the whole file system is read-only there is no folder for temporary files.
    with os.fdopen(os.memfd_create("attendant-stderr"), "rb") as kept:
        saved = os.dup(2)
        _saved.append(saved)
        os.dup2(kept.fileno(), 2)
        try:
            with contextlib.redirect_stdout(None):
                yield said
        finally:
            os.dup2(saved, 2)
            _saved.remove(saved)
            os.close(saved)
            kept.seek(0)
            said.text = kept.read().decode(errors="replace")


def speak_again() -> None:
    """Gives the process its standard output and error back, whoever keeps them and will never let go."""
    if _saved:
        os.dup2(_saved[0], 2)
        sys.stdout = sys.__stdout__
