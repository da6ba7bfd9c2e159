"""Reads the learning curves of runs from their journals."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from attendant.runtime.errors import UserError
from attendant.training.evaluation.metrics import PerplexityName
from attendant.training.run.directory import Run

MAX_POINTS = 400  # Points of a curve in a picture; more are averaged in groups.


@dataclass(frozen=True, slots=True)
class Curve:
    """Values over the course of a training.

    Attributes:
        steps: [N] rising; seconds: [N] of the training so far; values: [N].
    """

    steps: NDArray[np.float64]
    seconds: NDArray[np.float64]
    values: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.steps)

    def thinned(self) -> "Curve":
        """Returns the means of groups of neighbours, at most MAX_POINTS."""
        if len(self) <= MAX_POINTS:
            return self
        groups = np.array_split(np.stack([self.steps, self.seconds, self.values]), MAX_POINTS, axis=1)
        return Curve(*np.stack([group.mean(1) for group in groups], 1))


NO_CURVE = Curve(*np.empty((3, 0)))


@dataclass(frozen=True, slots=True)
class LearningCurves:
    """The curves of a run's journal.

    Attributes:
        train_loss: loss of the batches, in nats per target token, smoothed labels and dropout included.
        validation: by name: "loss", in nats per target token, and the recipe's metric.
    """

    train_loss: Curve
    validation: Mapping[str, Curve]


def read_curves(run: Run) -> LearningCurves:
    """Reads metrics.jsonl, except an unfinished last line. Raises UserError: a line is not an event of a training."""
    events: list[dict[str, Any]] = []
    content = run.metrics_path.read_bytes() if run.metrics_path.exists() else b""
    for number, line in enumerate(content.split(b"\n")[:-1], 1):
        try:
            event = json.loads(line)
            _ = event["event"], event["step"], event["seconds"]
            _ = [float(value) for name, value in event.items() if name != "event" and value is not None]
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{run.metrics_path}:{number}: is no event of a training: remove the line") from None
        events.append(event)
    train = [event for event in events if event["event"] == "train"]
    validation = [event for event in events if event["event"] == "validation"]
    # Perplexities are the loss again, in another unit.
    skipped = ("event", "step", "epoch", "seconds", *get_args(PerplexityName))
    names = [name for name in dict.fromkeys(name for event in validation for name in event) if name not in skipped]
    return LearningCurves(_curve(train, "loss"), {name: _curve(validation, name) for name in names})


def _curve(events: Sequence[Mapping[str, Any]], name: str) -> Curve:
    having = [event for event in events if name in event]
    return Curve(*(np.array([event[key] for event in having], np.float64) for key in ("step", "seconds", name)))
