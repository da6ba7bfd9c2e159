"""Comparisons of two runs: their weights and their journals."""

import json
from pathlib import Path
from typing import Any

import torch

from attendant.training.run.loading import load_run


def weights(run: Path, which: str = "last") -> dict[str, torch.Tensor]:
    return load_run(run, which).model.state_dict()


def events(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def steps_of(run: Path) -> list[tuple[str, int]]:
    """Returns the event and the step of each line of the journal."""
    return [(event["event"], event["step"]) for event in events(run)]


def assert_same_weights(run: Path, other: Path) -> None:
    for which in ("best", "last"):
        first, second = weights(run, which), weights(other, which)
        assert first.keys() == second.keys()
        assert all(torch.equal(first[name], second[name]) for name in first)
