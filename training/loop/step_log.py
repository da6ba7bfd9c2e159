"""What the steps of a training add up to, for its journal and for whoever watches."""

import math

from attendant.training.loop.journal import Journal
from attendant.training.loop.progress import StepProgress, TrainingProgress
from attendant.training.loop.update import Gradient


class StepLog:
    """Sums steps up: a line of the journal every `every_steps`, and the progress at each."""

    def __init__(self, journal: Journal, progress: TrainingProgress, every_steps: int) -> None:
        self._journal = journal
        self._progress = progress
        self._every_steps = every_steps
        self._begin()

    def add(
        self,
        gradient: Gradient,
        *,
        num_tokens: int,
        seconds: float,
        rate: float,
        step: int,
        epoch: int,
        place: tuple[int, int, int],
        total_seconds: float,
        seconds_left: float | None,
    ) -> None:
        """Is told of a step.

        Args:
            num_tokens: target tokens, over all processes.
            seconds: that the step took.
            rate: the learning rate.
            step, epoch: that are done.
            place: epoch, batch and batches of an epoch, counted from 1.
            total_seconds: of the training so far.
        """
        self._loss += gradient.loss * num_tokens
        self._num_tokens += num_tokens
        self._seconds += seconds
        mean, speed = self._loss / self._num_tokens, self._num_tokens / max(self._seconds, 1e-9)
        running_epoch, batch, num_batches = place
        self._progress.step(
            StepProgress(
                epoch=running_epoch,
                batch=batch,
                num_batches=num_batches,
                loss=mean,
                rate=speed,
                seconds_left=seconds_left,
            )
        )
        if step % self._every_steps == 0:
            values = {"loss": mean, "learning_rate": rate, "tokens_per_second": speed, "seconds": total_seconds}
            if math.isfinite(gradient.norm):
                values["gradient_norm"] = gradient.norm
            self._journal.write("train", step=step, epoch=epoch, values=values)
            self._begin()

    def _begin(self) -> None:
        self._loss = self._seconds = 0.0
        self._num_tokens = 0
