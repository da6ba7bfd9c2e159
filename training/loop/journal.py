"""The journal of a training, metrics.jsonl and TensorBoard, and the log that sums up its steps for it."""

import json
import math
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from attendant.training.loop.progress import StepProgress, TrainingProgress
from attendant.training.loop.update import Gradient
from attendant.training.run.directory import Run, write_text
from attendant.training.run.state import TrainingState


class Journal:
    """Appends events, each with the step it belongs to. A resumed run says each step once."""

    def __init__(self, run: Run, *, step: int) -> None:
        """Opens the journal; what a killed process wrote beyond `step`, where it resumes, is taken back."""
        _cut_after(run.metrics_path, step)
        self._file = run.metrics_path.open("a", encoding="utf-8", newline="\n")
        self._board = SummaryWriter(str(run.path / "tensorboard"), purge_step=step + 1)

    def write(self, event: str, *, step: int, epoch: int, values: dict[str, float]) -> None:
        """One line of metrics.jsonl, and each value as a TensorBoard scalar `event/name`."""
        self._file.write(json.dumps({"event": event, "step": step, "epoch": epoch} | values) + "\n")
        self._file.flush()
        for name, value in values.items():
            self._board.add_scalar(f"{event}/{name}", value, step)

    def close(self) -> None:
        self._file.close()
        self._board.close()


class SilentJournal(Journal):
    """The journal of every process but the first: it writes nothing."""

    def __init__(self) -> None: ...

    def write(self, event: str, *, step: int, epoch: int, values: dict[str, float]) -> None: ...

    def close(self) -> None: ...


def _cut_after(path: Path, step: int) -> None:
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            entry: dict[str, Any] = json.loads(line)
        except ValueError:
            break  # the half line that a killed process left is its last
        if entry["step"] <= step:
            kept.append(line + "\n")
    write_text(path, "".join(kept))


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
