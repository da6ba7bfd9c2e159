"""The journal of a training (metrics.jsonl and TensorBoard), and the sums over its steps."""

import json
import os
from contextlib import suppress
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from attendant.runtime.files import translate_os_errors, write_text
from attendant.training.evaluation.metrics import perplexity
from attendant.training.loop.callbacks import Record, TrainingCallback, TrainingStart
from attendant.training.loop.update import Gradient
from attendant.training.run.directory import Run


class Journal(TrainingCallback):
    """Appends events, each with its step. A resumed run never logs a step twice."""

    def __init__(self, run: Run) -> None:
        self._path = run.metrics_path
        self._board_path = run.path / "tensorboard"

    def begin(self, start: TrainingStart) -> None:
        """Opens the journal and removes later events than `start`, which a killed process wrote before a resumption."""
        _cut_after(self._path, start.step)
        with translate_os_errors(self._path):
            # Not buffered: a line that does not fit on the disk can be removed again.
            self._file = self._path.open("ab", buffering=0)
        with translate_os_errors(self._board_path):
            self._board = SummaryWriter(str(self._board_path), purge_step=start.step + 1)

    def record(self, record: Record) -> None:
        """Writes a line of metrics.jsonl, whole or not at all, and each value as a TensorBoard scalar `event/name`.
        Raises CantWrite: the disk is full.
        """
        head = {"event": record.event, "step": record.step, "epoch": int(record.epochs)}
        line = (json.dumps(head | dict(record.values)) + "\n").encode()
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
            for name, value in record.values.items():
                self._board.add_scalar(f"{record.event}/{name}", value, record.step)

    def end(self, error: BaseException | None) -> None:
        """Closes the files. Raises CantWrite."""
        self._file.close()
        with translate_os_errors(self._board_path):
            self._board.close()


def _cut_after(path: Path, step: int) -> None:
    if not path.exists():
        return
    kept = []
    for line in path.read_bytes().split(b"\n"):
        # The half line of a killed process, or a line that the loss of power has damaged, goes.
        with suppress(ValueError, TypeError, KeyError):
            if json.loads(line)["step"] <= step:
                kept.append(line.decode() + "\n")
    write_text(path, "".join(kept))


class StepSums:
    """Sums over the steps since the last record of the journal."""

    def __init__(self) -> None:
        self._loss = self._cross_entropy = self._seconds = 0.0
        self._num_tokens = 0

    def add(self, gradient: Gradient, num_tokens: int, seconds: float) -> dict[str, float]:
        """Adds a step with `num_tokens` target tokens in all processes. Returns the means so far, by name."""
        self._loss += gradient.loss * num_tokens
        self._cross_entropy += gradient.cross_entropy * num_tokens
        self._num_tokens += num_tokens
        self._seconds += seconds
        return {
            "loss": self._loss / self._num_tokens,
            "perplexity": perplexity(-self._cross_entropy, self._num_tokens),
            "tokens_per_second": self._num_tokens / max(self._seconds, 1e-9),
        }
