"""Callbacks watch a training: the journal, the progress on a terminal, and users' own trackers."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from attendant.training.progress import Pauses, print_line, time_left

if TYPE_CHECKING:
    from attendant.training.recipe import Recipe  # needs torch, and a callback does not


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStart:
    """A training that is about to make its first step.

    Attributes:
        path: the run directory.
        recipe: the resolved recipe: `recipe.fields()` has each value by its dotted name, `recipe.model_dump()` tables.
        step: steps that were made before a resumption; 0 for a new run.
        num_steps: steps of the whole run, if training.max_steps or max_epochs limits it; else None.
        num_parameters: weights of the model.
    """

    path: Path
    recipe: "Recipe"
    step: int
    num_steps: int | None
    num_parameters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProgress:
    """A training's progress after a step.

    Attributes:
        step: step of the whole run, counted from 1.
        epoch, batch: counted from 1.
        num_batches: batches of an epoch.
        loss: in nats per target token, over the last steps.
        perplexity: per target token, over the last steps; without label smoothing, which only the loss has.
        tokens_per_second: target tokens.
        seconds_left: until the run's nearest limit. If None, there is no limit.
    """

    step: int
    epoch: int
    batch: int
    num_batches: int
    loss: float
    perplexity: float
    tokens_per_second: float
    seconds_left: float | None

    @property
    def time_left(self) -> str:
        return "" if self.seconds_left is None else time_left(self.seconds_left)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A line of the journal, metrics.jsonl.

    Attributes:
        event: "train" sums up the last `training.log_every_steps` steps; "validation" has a validation's values.
        step: steps so far.
        epochs: passes over the training split so far.
        values: by name. "loss" is in nats per target token, "seconds" the run's time so far.
        is_best: a validation has found the best weights so far.
    """

    event: Literal["train", "validation"]
    step: int
    epochs: float
    values: Mapping[str, float]
    is_best: bool = False


class TrainingCallback:
    """Watches a training: a base class whose methods do nothing. Override those that you need.

    If there are several callbacks, `begin`, `step` and `record` are called in their order, and `end` in reverse order,
    by the training's own thread. An exception in a callback ends the training. The training is saved first, so that it
    can be resumed, and the exception is raised to the caller of the training.
    """

    def begin(self, start: TrainingStart) -> None:
        """Is called before the first step."""

    def step(self, progress: StepProgress) -> None:
        """Is called after each step."""

    def record(self, record: Record) -> None:
        """Is called for each line of the journal: before `step`, or after a validation."""

    def end(self, error: BaseException | None) -> None:
        """Is called once if `begin` has returned, however the training ends.

        Args:
            error: the exception that ended it, e.g. KeyboardInterrupt. If None, a limit of the recipe was reached.
        """


class TrainingProgress(TrainingCallback):
    """Shows the steps of a training as lines of text, for a file."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._pauses = Pauses(clock)

    def step(self, progress: StepProgress) -> None:
        if self._pauses.is_over():
            self._write(
                f"epoch {progress.epoch}, batch {progress.batch}/{progress.num_batches}, loss {progress.loss:.3f}, "
                f"perplexity {progress.perplexity:.4g}, {progress.tokens_per_second:,.0f} tokens/s"
                + (progress.time_left and f", {progress.time_left}")
            )

    def record(self, record: Record) -> None:
        """Shows validations."""
        if record.event == "validation":
            values = {name: value for name, value in record.values.items() if name != "seconds"}
            shown = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
            best = " (best)" if record.is_best else ""
            self._write(f"epoch {record.epochs:.3g}, step {record.step}: validation {shown}{best}")


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

    def begin(self, start: TrainingStart) -> None:
        self._progress.start()

    def step(self, progress: StepProgress) -> None:
        self._progress.update(
            self._task,
            description=f"epoch {progress.epoch}",
            completed=progress.batch,
            total=progress.num_batches,
            loss=f"{progress.loss:.3f}",
            perplexity=f"{progress.perplexity:.4g}",
            speed=f"{progress.tokens_per_second:,.0f}",
            left=progress.time_left,
        )

    def end(self, error: BaseException | None) -> None:
        self._progress.stop()


def make_progress() -> TrainingProgress:
    console = Console(stderr=True)
    return LiveProgress(console) if console.is_terminal else TrainingProgress(print_line)
