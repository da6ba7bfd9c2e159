"""How far a bulk run has come, on standard error."""

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@contextmanager
def progress(*, enabled: bool, descriptor: int = 0) -> Iterator[Callable[[int], None]]:
    """Shows a bar while the block runs; gives a function to call with the size in bytes of each line that is done.

    Only where a bar helps and harms nothing: standard error is a terminal, and neither the lines nor the answers go
    through it too.
    """
    if not enabled or not sys.stderr.isatty() or sys.stdout.isatty() or os.isatty(descriptor):
        yield lambda num_bytes: None
        return
    bar = Progress(
        TextColumn("{task.fields[num_lines]} lines"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[speed]:.0f} lines/s"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        redirect_stdout=False,
    )
    with bar:
        task = bar.add_task("", total=_remaining_bytes(descriptor), num_lines=0, speed=0.0)
        num_lines = 0

        def advance(num_bytes: int) -> None:
            nonlocal num_lines
            num_lines += 1
            elapsed = bar.tasks[0].elapsed or 0.0
            bar.update(task, advance=num_bytes, num_lines=num_lines, speed=num_lines / elapsed if elapsed else 0.0)

        yield advance


def _remaining_bytes(descriptor: int) -> int | None:
    """None where only the end will tell: a pipe."""
    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode):
        return None
    return facts.st_size - os.lseek(descriptor, 0, os.SEEK_CUR)
