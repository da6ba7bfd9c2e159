"""The journal of a training, metrics.jsonl and TensorBoard, and the log that sums up its steps for it."""

import json
import math
import os
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from attendant.runtime.files import translate_os_errors, write_text
from attendant.training.evaluation.metrics import perplexity
from attendant.training.loop.update import Gradient
from attendant.training.progress import StepProgress, TrainingProgress
from attendant.training.run.checkpoint import TrainingState
from attendant.training.run.directory import Run


class SilentJournal:
    """Writes nothing: the journal of every process except the first."""

    def write(self, event: str, *, step: int, epoch: int, values: dict[str, float]) -> None: ...


class Journal(SilentJournal):
    """Appends events, each with its step. A resumed run never logs a step twice."""

    def __init__(self, run: Run, *, step: int) -> None:
        """Opens the journal and removes the events after `step`, which a killed process wrote before a resumption."""
        self._path = run.metrics_path
        _cut_after(self._path, step)
        with translate_os_errors(self._path):
            # Not buffered: a line that does not fit on the disk can be removed again.
            self._file = self._path.open("ab", buffering=0)
        self._board_path = run.path / "tensorboard"
        with translate_os_errors(self._board_path):
            self._board = SummaryWriter(str(self._board_path), purge_step=step + 1)

    def write(self, event: str, *, step: int, epoch: int, values: dict[str, float]) -> None:
        """Writes a line of metrics.jsonl, whole or not at all, and each value as a TensorBoard scalar `event/name`.

        Raises:
            CantWrite: the disk is full.
        """
        line = (json.dumps({"event": event, "step": step, "epoch": epoch} | values) + "\n").encode()
        with translate_os_errors(self._path):
            size = self._path.stat().st_size
            try:
                written = 0
                while written < len(line):  # a disk that fills takes a part first
                    written += self._file.write(line[written:])
            except OSError:
                os.truncate(self._path, size)
                raise
        with translate_os_errors(self._board_path):
            for name, value in values.items():
                self._board.add_scalar(f"{event}/{name}", value, step)

    def close(self) -> None:
        """Raises CantWrite."""
        self._file.close()
        with translate_os_errors(self._board_path):
            self._board.close()


def _cut_after(path: Path, step: int) -> None:
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            break  # the half line that a killed process left is its last
        if entry["step"] <= step:
            kept.append(line + "\n")
    write_text(path, "".join(kept))


class StepLog:
    """Sums steps up: a line of the journal every `every_steps`, and the progress at each step."""

    def __init__(self, journal: SilentJournal, progress: TrainingProgress, every_steps: int) -> None:
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
        learning_rate: float,
        at: tuple[int, int, int],
        seconds_left: float | None,
    ) -> None:
        """Adds a step.

        Args:
            state: after the step.
            num_tokens: target tokens, over all processes.
            seconds: duration of the step.
            at: the step's epoch and batch, counted from 1, and the number of batches of an epoch.
            seconds_left: until the run's nearest limit. If None, there is no limit.
        """
        self._loss += gradient.loss * num_tokens
        self._cross_entropy += gradient.cross_entropy * num_tokens
        self._num_tokens += num_tokens
        self._seconds += seconds
        loss = self._loss / self._num_tokens
        mean_perplexity = perplexity(-self._cross_entropy, self._num_tokens)
        tokens_per_second = self._num_tokens / max(self._seconds, 1e-9)
        self._progress.step(StepProgress(*at, loss, mean_perplexity, tokens_per_second, seconds_left))
        if state.step % self._every_steps == 0:
            values = {
                "loss": loss,
                "perplexity": mean_perplexity,
                "learning_rate": learning_rate,
                "tokens_per_second": tokens_per_second,
                "seconds": state.seconds,
            }
            if math.isfinite(gradient.norm):
                values["gradient_norm"] = gradient.norm
            self._journal.write("train", step=state.step, epoch=state.epoch, values=values)
            self._begin()

    def _begin(self) -> None:
        self._loss = self._cross_entropy = self._seconds = 0.0
        self._num_tokens = 0
