"""Sums up the steps of a training, for its journal and its progress display."""

import math

from attendant.training.loop.journal import Journal
from attendant.training.loop.progress import StepProgress, TrainingProgress
from attendant.training.loop.update import Gradient
from attendant.training.run.state import TrainingState


class StepLog:
    """Sums steps up: a line of the journal every `every_steps`, and the progress at each."""

    def __init__(self, journal: Journal, progress: TrainingProgress, every_steps: int) -> None:
        self._journal = journal
        self._progress = progress
        self._every_steps = every_steps
        self._begin()

    def add(
        self,
        state: TrainingState,
        gradient: Gradient,
        num_tokens: int,
        *,
        seconds: float,
        rate: float,
        at: tuple[int, int, int],
        seconds_left: float | None,
    ) -> None:
        """Takes in a step.

        Args:
            state: after the step.
            num_tokens: target tokens, over all processes.
            seconds: that the step took.
            rate: the learning rate.
            at: the step's epoch and batch, counted from 1, and the number of batches of an epoch.
            seconds_left: until the run's nearest limit; None: it has none.
        """
        self._loss += gradient.loss * num_tokens
        self._num_tokens += num_tokens
        self._seconds += seconds
        mean, speed = self._loss / self._num_tokens, self._num_tokens / max(self._seconds, 1e-9)
        self._progress.step(StepProgress(*at, loss=mean, rate=speed, seconds_left=seconds_left))
        if state.step % self._every_steps == 0:
            values = {"loss": mean, "learning_rate": rate, "tokens_per_second": speed, "seconds": state.seconds}
            if math.isfinite(gradient.norm):
                values["gradient_norm"] = gradient.norm
            self._journal.write("train", step=state.step, epoch=state.epoch, values=values)
            self._begin()

    def _begin(self) -> None:
        self._loss = self._seconds = 0.0
        self._num_tokens = 0
