"""A training that begins with another run's weights: they are the published ones, once, or it is refused in a line."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from attendant.runtime.files import sha256_of
from attendant.training.run.checkpoint import BEST, MODEL_FILE, checkpoint_path
from attendant.training.run.directory import Run
from attendant.training.run.loading import load_run

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def trained(tmp_path: Path, tiny_recipe: Path, command: Command) -> Path:
    """A run whose published weights are an average."""
    assert command(tiny_recipe, "--output", tmp_path / "first", "--set", "training.ema_decay=0.9")[0] == 0
    return tmp_path / "first"


def starting(run: Path, *overrides: str) -> list[str]:
    return [part for each in (f"training.start_from={run}", *overrides) for part in ("--set", each)]


def test_begins_with_the_published_weights_and_says_so(
    tmp_path: Path, tiny_recipe: Path, trained: Path, command: Command
) -> None:
    output = tmp_path / "second"
    # Other data, whose own vocabulary would be smaller, and another dropout; at this rate the weights stay.
    tiny_data = tmp_path / "few.tsv"
    tiny_data.write_text("ab\ta b\nba\tb a\n")
    options = ("optimizer.learning_rate=1e-12", f"data.train={tiny_data}", "model.dropout=0.3")
    assert command(tiny_recipe, "--output", output, *starting(trained, *options))[0] == 0
    published = checkpoint_path(Run(trained), BEST)
    assert published is not None
    weights = load_run(output).model.state_dict()
    for name, weight in load_file(published / MODEL_FILE).items():
        torch.testing.assert_close(weights[name], weight, rtol=0, atol=1e-6)
    for side in ("source", "target"):
        assert Run(output).tokenizer_path(side).read_text() == Run(trained).tokenizer_path(side).read_text()
    assert json.loads((output / "start.json").read_text()) == {
        "run": str(trained),
        "checkpoint": f"sha256:{sha256_of(published / MODEL_FILE)}",
        "step": load_run(trained).state.step,
    }
    assert load_run(output, "last").state.epoch == 2


def test_resuming_does_not_begin_again(tmp_path: Path, tiny_recipe: Path, trained: Path, command: Command) -> None:
    output = tmp_path / "second"
    assert command(tiny_recipe, "--output", output, *starting(trained, "training.max_epochs=1"))[0] == 0
    said, reached = (output / "start.json").read_text(), load_run(output, "last").model.state_dict()
    status, _, errors = command(tiny_recipe, "--output", output, "--resume")
    assert status == 2 and f"was begun with training.start_from = '{trained}'" in errors
    shutil.rmtree(trained)  # no longer needed
    assert command(tiny_recipe, "--output", output, "--resume", *starting(trained))[0] == 0
    assert (output / "start.json").read_text() == said
    assert load_run(output, "last").state.epoch == 2
    assert not torch.equal(load_run(output, "last").model.state_dict()["output.weight"], reached["output.weight"])


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("model.hidden_size=24", "was trained with model.hidden_size = 16, and this recipe says 24: make them equal"),
        ("model.decoder.input_feeding=true", "with model.decoder.input_feeding = false, and this recipe says true"),
        ("source.normalize=[]", 'was trained with source.normalize = ["nfc"], and this recipe says []'),
        ('target.tokenizer="character"', 'with target.tokenizer = "word", and this recipe says "character"'),
    ],
)
def test_another_model_is_refused_by_its_first_difference(
    tmp_path: Path, tiny_recipe: Path, trained: Path, command: Command, override: str, said: str
) -> None:
    status, _, errors = command(tiny_recipe, "--output", tmp_path / "second", *starting(trained, override))
    assert status == 2 and said in errors and "training.start_from" in errors and len(errors.splitlines()) == 1
    assert not (tmp_path / "second").exists()


def test_what_is_no_trained_run_is_refused(tmp_path: Path, tiny_recipe: Path, trained: Path, command: Command) -> None:
    status, _, errors = command(tiny_recipe, "--output", tmp_path / "second", *starting(tmp_path / "none"))
    assert status == 2 and "none is not a run" in errors and len(errors.splitlines()) == 1
    shutil.rmtree(trained / "checkpoints")
    status, _, errors = command(tiny_recipe, "--output", tmp_path / "second", *starting(trained))
    assert status == 2 and "has no checkpoint 'best' yet: train it first" in errors and len(errors.splitlines()) == 1
