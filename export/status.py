"""Tells the user what an export is doing."""

import contextlib
import sys
from collections.abc import Callable

from rich.console import Console

Say = Callable[[str], None]
"""Tells the user what goes on, in one line."""


def say_nothing(line: str) -> None:
    """For callers without a screen."""


class Status(contextlib.AbstractContextManager["Status"]):
    """What is going on: one changing line on a terminal, one line per stage elsewhere."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._status = console.status("") if console.is_terminal else None

    def __enter__(self) -> "Status":
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._status is not None:
            self._status.stop()

    def say(self, line: str) -> None:
        """Tells the stage that begins."""
        if self._status is not None:
            self._status.update(line)
        else:
            print(f"export: {line}", file=sys.stderr, flush=True)
