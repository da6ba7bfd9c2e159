"""Output of the commands: lines and tables on standard output, and progress on standard error."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

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

PIPE_WIDTH = 10_000  # Columns if standard output is not a terminal, so that nothing is folded.

ShowProgress = Callable[[str, int, int], None]
"""Shows the progress of a piece of work: its name, the number of finished items, and the number of all items."""


def print_line(line: str) -> None:
    """Prints a line without buffering, also if standard output is a file."""
    print(line, flush=True)


def plain_console() -> Console:
    """Returns a console for standard output that prints users' texts as they are."""
    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def plain_table(*headings: str) -> Table:
    """Returns a table without lines. A heading that ends in " >" is of numbers, which are aligned to the right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading.removesuffix(" >"), justify="right" if heading.endswith(" >") else "left")
    return table


@contextmanager
def progress_bars() -> Iterator[ShowProgress]:
    """Yields a function that shows a bar for each work if standard error is a terminal; finished bars are removed."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bars = Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal)
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
