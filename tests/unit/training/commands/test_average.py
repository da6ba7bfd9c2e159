"""Averaged checkpoints: the mean of those that were kept, as a run that is evaluated like any other."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from attendant.training.run.checkpoint import MODEL_FILE, load_tensors, validated_checkpoints
from attendant.training.run.directory import Run
from attendant.training.run.loading import load_run

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def finished(tmp_path: Path, tiny_recipe: Path, command: Command) -> Path:
    options = ("training.keep_checkpoints=3", "validation.metric=loss", "validation.every_steps=4")
    assert (
        command(tiny_recipe, "--output", tmp_path / "run", *(part for each in options for part in ("--set", each)))[0]
        == 0
    )
    return tmp_path / "run"


def test_the_last_validated_checkpoints_are_kept_and_averaged(tmp_path: Path, finished: Path, command: Command) -> None:
    kept = validated_checkpoints(Run(finished))
    assert [path.name for path in kept] == ["step-00000008", "step-00000012", "step-00000016"]
    status, said, _ = command("average", finished, "--last", 2, "--output", tmp_path / "mean")
    assert status == 0 and "steps 12, 16" in said
    mean = load_run(tmp_path / "mean").model.state_dict()
    one, other = (load_tensors(path, MODEL_FILE) for path in kept[-2:])
    for name, weight in mean.items():
        torch.testing.assert_close(weight, (one[name] + other[name]) / 2)
    assert not torch.equal(mean["output.weight"], other["output.weight"])
    assert command("evaluate", tmp_path / "mean", "--metrics", "wer")[0] == 0
    assert json.loads((tmp_path / "mean" / "evaluation.json").read_text())[0]["metric"] == "wer"


def test_an_average_is_not_trained_on(tmp_path: Path, finished: Path, command: Command) -> None:
    assert command("average", finished, "--last", 3, "--output", tmp_path / "mean")[0] == 0
    status, _, errors = command(finished / "recipe.toml", "--output", tmp_path / "mean", "--resume")
    assert status == 2 and "averaged weights only, which can't be trained on" in errors


def test_mistakes_are_one_line(tmp_path: Path, finished: Path, command: Command) -> None:
    for arguments, said in (
        ((finished, "--last", 4, "--output", tmp_path / "a"), "has 3 validated checkpoints, fewer than --last 4"),
        ((finished, "--last", 0, "--output", tmp_path / "a"), "--last 0: must be at least 1"),
        ((finished, "--output", finished), "exists: --output names another"),
        ((tmp_path / "none", "--output", tmp_path / "a"), "is not a run"),
    ):
        status, _, errors = command("average", *arguments)
        assert status == 2 and said in errors and len(errors.splitlines()) == 1
    assert not (tmp_path / "a").exists()
