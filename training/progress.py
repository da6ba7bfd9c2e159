"""Output of the commands: lines and tables on standard output, and progress on standard error."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from attendant.runtime.errors import UserError, shown

PIPE_WIDTH = 10_000  # Columns if standard output is not a terminal, so that nothing is folded.
FIRST_PAUSE_SECONDS = 10.0
LONGEST_PAUSE_SECONDS = 600.0

ShowProgress = Callable[[str, int, int], None]
"""Shows the progress of a piece of work: its name, the number of finished items, and the number of all items."""


def check_progress(show: object) -> None:
    """Raises UserError: the argument `progress` of a function is neither None nor a function."""
    if show is not None and not callable(show):
        raise UserError(f"progress={shown(show)}: must be a function of (work, done, total), or None")


def print_line(line: str) -> None:
    """Prints a line without buffering, also if standard output is a file."""
    print(line, flush=True)


def plain_console() -> Console:
    """Returns a console for standard output that prints users' texts as they are."""
    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    if not sys.stdout.isatty():  # FORCE_COLOR, as in CI, makes rich take a file for a terminal of 80 columns
        console.width = PIPE_WIDTH
    return console


def plain_table(*headings: str) -> Table:
    """Returns a table without lines. A heading that ends in " >" is of numbers, which are aligned to the right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading.removesuffix(" >"), justify="right" if heading.endswith(" >") else "left")
    return table


class Pauses:
    """Decides when the next line of progress is due, so that long work does not fill a file.

    The first line comes after ten seconds. Each pause is twice as long as the one before, up to ten minutes.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last = clock()
        self._pause = FIRST_PAUSE_SECONDS

    def is_over(self) -> bool:
        """Returns True if a line is due now; the next pause then begins."""
        now = self._clock()
        if now - self._last < self._pause:
            return False
        self._last, self._pause = now, min(LONGEST_PAUSE_SECONDS, 2 * self._pause)
        return True


def time_left(seconds: float) -> str:
    """Returns `1:05 left`: minutes and seconds."""
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes}:{seconds:02d} left"


def progress_lines(write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> ShowProgress:
    """Returns a function that writes the progress of each work as lines of text, for a file."""
    begun: dict[str, tuple[float, Pauses]] = {}

    def show(work: str, done: int, total: int) -> None:
        if work not in begun:
            begun[work] = clock(), Pauses(clock)
        start, pauses = begun[work]
        if done >= total:
            begun.pop(work)
        elif done and pauses.is_over():
            write(f"{work}: {done:,} of {total:,}, {time_left((clock() - start) * (total - done) / done)}")

    return show


@contextmanager
def progress_bars() -> Iterator[ShowProgress]:
    """Yields a function that shows a bar for each work; finished bars are removed. If standard error is no terminal, it
    writes lines there.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield progress_lines(partial(print, file=sys.stderr, flush=True))
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bars = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
    tasks: dict[str, TaskID] = {}

    def show(work: str, done: int, total: int) -> None:
        if not tasks:
            bars.start()  # not earlier: while bars are shown, rich writes all output above them
        if work not in tasks:
            tasks[work] = bars.add_task(work, total=total)
        bars.update(tasks[work], completed=done)
        if done >= total:
            bars.remove_task(tasks.pop(work))
        if not tasks:
            bars.stop()

    try:
        yield show
    finally:
        bars.stop()


def counter(show: ShowProgress | None, work: str, total: int) -> Callable[[int], None]:
    """Returns a function that adds finished items, and shows the progress by `show` if it is not None."""
    done = 0

    def add(count: int) -> None:
        nonlocal done
        done += count
        if show is not None:
            show(work, done, total)

    add(0)
    return add
