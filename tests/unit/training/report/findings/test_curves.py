"""What a journal says, as curves."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attendant.runtime.errors import UserError
from attendant.training.report.measuring import MAX_POINTS, Curve, read_curves
from attendant.training.run.directory import Run


def write(folder: Path, *events: dict[str, Any], rest: str = "") -> Run:
    run = Run(folder)
    run.metrics_path.write_text("".join(json.dumps(event) + "\n" for event in events) + rest)
    return run


def event(kind: str, step: int, **values: float) -> dict[str, Any]:
    return {"event": kind, "step": step, "epoch": 0, "seconds": step / 10} | values


def test_a_journal_becomes_curves(tmp_path: Path) -> None:
    run = write(
        tmp_path,
        event("train", 2, loss=3.0, learning_rate=0.1),
        event("train", 4, loss=2.0, learning_rate=0.1),
        event("validation", 4, loss=2.5, bleu=7.0),
        rest='{"event": "train", "st',
    )
    curves = read_curves(run)
    assert curves.train_loss.steps.tolist() == [2, 4] and curves.train_loss.values.tolist() == [3, 2]
    assert list(curves.validation) == ["loss", "bleu"]
    assert curves.validation["bleu"].seconds.tolist() == [0.4] and curves.validation["bleu"].values.tolist() == [7]


def test_no_journal_is_no_curve(tmp_path: Path) -> None:
    curves = read_curves(Run(tmp_path))
    assert not len(curves.train_loss) and not curves.validation


def test_a_line_that_is_no_event_is_named(tmp_path: Path) -> None:
    run = write(tmp_path, event("train", 2, loss=3.0), rest="{}\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl:2"):
        read_curves(run)


def test_long_curves_are_averaged_in_groups() -> None:
    steps = np.arange(4.0 * MAX_POINTS)
    thinned = Curve(steps, steps / 10, steps % 4).thinned()
    assert len(thinned) == MAX_POINTS
    assert set(thinned.values) == {1.5} and thinned.steps[0] == 1.5
    short = Curve(steps[:3], steps[:3], steps[:3])
    assert short.thinned() is short
