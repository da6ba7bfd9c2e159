"""The journal of a training (metrics.jsonl and TensorBoard), and the sums over its steps."""

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from io import BytesIO, FileIO
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

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
        # Not buffered: a line that does not fit on the disk can be removed again.
        with translate_os_errors(self._path):
            self._file = self._path.open("ab", buffering=0)
        # Not torch's SummaryWriter: it writes in a thread, which prints a traceback if the disk is full.
        with translate_os_errors(self._board_path):
            self._board_path.mkdir(exist_ok=True)
            self._board = self._next_board_path().open("ab", buffering=0)
        begun = SessionLog(status=SessionLog.START)  # TensorBoard hides earlier events from this step on.
        self._add_to_board(start.step + 1, [{"file_version": "brain.Event:2"}, {"session_log": begun}])

    def record(self, record: Record) -> None:
        """Writes a line of metrics.jsonl, whole or not at all, and each value as a TensorBoard scalar `event/name`.

        Raises:
            CantWrite: the disk is full.
        """
        head = {"event": record.event, "step": record.step, "epoch": int(record.epochs)}
        with translate_os_errors(self._path):
            _append(self._file, (json.dumps(head | dict(record.values)) + "\n").encode())
        scalars = [
            Summary.Value(tag=f"{record.event}/{name}", simple_value=value) for name, value in record.values.items()
        ]
        self._add_to_board(record.step, [{"summary": Summary(value=[scalar])} for scalar in scalars])

    def _next_board_path(self) -> Path:
        """Returns a file after all earlier ones, also if the clock was put back: TensorBoard reads them by name."""
        numbers = (path.suffix.removeprefix(".") for path in self._board_path.glob("events.out.tfevents.*"))
        last = max((int(number) for number in numbers if number.isdecimal()), default=0)
        return self._board_path / f"events.out.tfevents.{max(time.time_ns(), last + 1):019}"

    def _add_to_board(self, step: int, contents: Sequence[Mapping[str, Any]]) -> None:
        """Writes events for TensorBoard, all or none. Raises CantWrite."""
        events = BytesIO()
        writer = RecordWriter(events)
        for content in contents:
            writer.write(Event(wall_time=time.time(), step=step, **content).SerializeToString())
        with translate_os_errors(self._board_path):
            _append(self._board, events.getvalue())

    def end(self, error: BaseException | None) -> None:
        """Closes the files."""
        self._file.close()
        self._board.close()


def _append(file: FileIO, content: bytes) -> None:
    """Writes all of the content, or nothing if the disk is full. Raises OSError."""
    size = os.fstat(file.fileno()).st_size
    try:
        written = 0
        while written < len(content):  # a disk that fills takes a part first
            written += file.write(content[written:])
    except OSError:
        os.ftruncate(file.fileno(), size)
        raise


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
