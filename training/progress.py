"""Output of the commands: lines and tables on standard output, and progress on standard error."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

PIPE_WIDTH = 200  # Columns if standard output is not a terminal, so that nothing is folded.
FIRST_PAUSE_SECONDS = 10.0
LONGEST_PAUSE_SECONDS = 600.0


def say(line: str) -> None:
    """Prints a line at once, also if standard output is a file."""
    print(line, flush=True)


def plain_console() -> Console:
    """Returns a console for standard output that prints users' texts as they are."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def plain_table(*headings: str) -> Table:
    """Returns a table without lines. A heading that ends in " >" is of numbers, which are aligned to the right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading.removesuffix(" >"), justify="right" if heading.endswith(" >") else "left")
    return table


def progress_bar() -> Progress:
    """Returns a bar of finished and all items, shown if standard error is a terminal; it vanishes at the end."""
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


@dataclass(frozen=True, slots=True)
class StepProgress:
    """A training's progress after a step.

    Attributes:
        epoch, batch: counted from 1.
        loss: in nats per target token, over the last steps.
        perplexity: per target token, likewise; label smoothing is in the loss only.
        tokens_per_second: target tokens.
        seconds_left: until the run's nearest limit. If None, there is no limit.
    """

    epoch: int
    batch: int
    num_batches: int
    loss: float
    perplexity: float
    tokens_per_second: float
    seconds_left: float | None

    @property
    def time_left(self) -> str:
        if self.seconds_left is None:
            return ""
        minutes, seconds = divmod(round(self.seconds_left), 60)
        return f"{minutes}:{seconds:02d} left"


class TrainingProgress(AbstractContextManager["TrainingProgress"]):
    """Shows the steps of a training as lines of text, for a file.

    The first line comes after ten seconds, and each pause is twice as long as the one before, up to ten minutes.
    """

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._clock = clock
        self._last = clock()
        self._pause = FIRST_PAUSE_SECONDS

    def __exit__(self, *exception: object) -> None: ...

    def step(self, at: StepProgress) -> None:
        """Is called after each step."""
        if self._clock() - self._last < self._pause:
            return
        self._last, self._pause = self._clock(), min(LONGEST_PAUSE_SECONDS, 2 * self._pause)
        self._write(
            f"epoch {at.epoch}, batch {at.batch}/{at.num_batches}, loss {at.loss:.3f}, "
            f"perplexity {at.perplexity:.4g}, {at.tokens_per_second:,.0f} tokens/s"
            + (at.time_left and f", {at.time_left}")
        )

    def say(self, line: str) -> None:
        """Shows a line that stays."""
        self._write(line)


class LiveProgress(TrainingProgress):
    """Shows the running epoch as a bar."""

    def __init__(self, console: Console) -> None:
        super().__init__(lambda line: console.print(line, highlight=False, markup=False))
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("loss {task.fields[loss]}  perplexity {task.fields[perplexity]}  {task.fields[speed]} tokens/s"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task("starting", total=None, loss="-", perplexity="-", speed="-", left="")

    def __enter__(self) -> "LiveProgress":
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def step(self, at: StepProgress) -> None:
        self._progress.update(
            self._task,
            description=f"epoch {at.epoch}",
            completed=at.batch,
            total=at.num_batches,
            loss=f"{at.loss:.3f}",
            perplexity=f"{at.perplexity:.4g}",
            speed=f"{at.tokens_per_second:,.0f}",
            left=at.time_left,
        )


def make_progress() -> TrainingProgress:
    console = Console(stderr=True)
    return LiveProgress(console) if console.is_terminal else TrainingProgress(say)
