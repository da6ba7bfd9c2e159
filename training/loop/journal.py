"""The journal of a training: metrics.jsonl and TensorBoard."""

import json
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from attendant.training.run.directory import Run, write_text


class Journal:
    """Appends events, each with the step it belongs to. A resumed run says each step once."""

    def __init__(self, run: Run, *, step: int) -> None:
        """Opens the journal; what a killed process wrote beyond `step`, where it resumes, is taken back."""
        _cut_after(run.metrics_path, step)
        self._file = run.metrics_path.open("a", encoding="utf-8", newline="\n")
        self._board = SummaryWriter(str(run.tensorboard_path), purge_step=step + 1)

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
