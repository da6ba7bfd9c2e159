"""What commands of training show: lines on standard output, and progress on standard error."""

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


PLAIN_SECONDS = 10.0
MOST_PLAIN_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class StepProgress:
    """Where a training stands after a step.

    Attributes:
        epoch, batch: counted from 1.
        loss: in nats per target token, over the last steps.
        perplexity: per target token, likewise; label smoothing is in the loss alone.
        tokens_per_second: target tokens.
        seconds_left: until the run's nearest limit; None: it has none.
    """

    epoch: int
    batch: int
    num_batches: int
    loss: float
    perplexity: float
    tokens_per_second: float
    seconds_left: float | None


class TrainingProgress(AbstractContextManager["TrainingProgress"]):
    """Shows the steps of a training, and lines of text, while its context lasts.

    For a file: the first line after ten seconds, then each after twice as long as the one before, up to ten minutes.
    """

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._clock = clock
        self._last = clock()
        self._pause = PLAIN_SECONDS

    def __exit__(self, *exception: object) -> None: ...

    def step(self, at: StepProgress) -> None:
        """Is called after each step."""
        if self._clock() - self._last < self._pause:
            return
        self._last, self._pause = self._clock(), min(MOST_PLAIN_SECONDS, 2 * self._pause)
        left = _left(at.seconds_left)
        self._write(
            f"epoch {at.epoch}, batch {at.batch}/{at.num_batches}, loss {at.loss:.3f}, "
            f"perplexity {at.perplexity:.4g}, {at.tokens_per_second:,.0f} tokens/s" + (left and f", {left}")
        )

    def say(self, line: str) -> None:
        """Shows a line that stays."""
        self._write(line)


class LiveProgress(TrainingProgress):
    """A bar for the running epoch."""

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
            left=_left(at.seconds_left),
        )


def make_progress() -> TrainingProgress:
    console = Console(stderr=True)
    if console.is_terminal:
        return LiveProgress(console)
    return TrainingProgress(say)


def _left(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d} left"
