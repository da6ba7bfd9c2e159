"""What commands of training say: lines on standard output, and how far they have come on standard error."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


def say(line: str) -> None:
    """Prints a line at once, also where standard output is a file."""
    print(line, flush=True)


def progress_bar() -> Progress:
    """A bar of so many of so many, where standard error is a terminal; it vanishes at the end."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
