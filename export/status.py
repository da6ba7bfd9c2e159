"""Tells the user what an export is doing."""

import contextlib
import sys
from collections.abc import Callable, Iterator

from rich.console import Console

Say = Callable[[str], None]
"""Tells the user what goes on, in one line."""


def say_nothing(line: str) -> None:
    """For callers without a screen."""


@contextlib.contextmanager
def status() -> Iterator[Say]:
    """Tells the stage that begins: one changing line on a terminal, one line per stage elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda line: print(f"export: {line}", file=sys.stderr, flush=True)
        return
    with console.status("") as shown:
        yield shown.update
