"""A training small enough for a test: copying words of three letters, a second or less."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

RECIPE = """
seed = 5
[data]
train = "{folder}/train.tsv"
validation = "{folder}/validation.tsv"
test = "{folder}/validation.tsv"
max_source_tokens = 8
max_target_tokens = 8
[source]
tokenizer = "character"
[target]
tokenizer = "word"
[model]
embedding_size = 8
hidden_size = 16
dropout = 0.1
encoder.hidden_size = 8
[batches]
max_tokens = 48
[optimizer]
learning_rate = 0.02
[training]
max_epochs = 2
num_threads = 1
device = "cpu"
checkpoint_every_steps = 3
log_every_steps = 2
label_smoothing = 0.05
[validation]
metric = "exact_match"
[evaluation]
metrics = ["wer", "per"]
"""


@pytest.fixture
def tiny_recipe(tmp_path: Path) -> Path:
    """A recipe file beside its data: 8 batches an epoch."""
    words = ["".join(letters) for letters in itertools.product("abcd", repeat=3)]
    for name, part in (("train", words[::2] + words[1::4]), ("validation", words[3::4])):
        (tmp_path / f"{name}.tsv").write_text("".join(f"{word}\t{' '.join(word)}\n" for word in part))
    path = tmp_path / "tiny.toml"
    path.write_text(RECIPE.format(folder=tmp_path))
    return path


@pytest.fixture(autouse=True)
def _torch_threads(torch_threads: None) -> None:
    """Around each of these tests."""


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """`python -m training ...` in this process: exit status, standard output, standard error."""
    from attendant.runtime.command import run_command
    from attendant.training.__main__ import main

    def run(*arguments: object) -> tuple[int, str, str]:
        status = run_command("training", lambda: main([str(argument) for argument in arguments]))
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture
def finished_run(tmp_path: Path, tiny_recipe: Path, command: Callable[..., tuple[int, str, str]]) -> Path:
    """A run that has ended."""
    output = tmp_path / "run"
    status, _, errors = command(tiny_recipe, "--output", output, "--set", "training.max_epochs=1")
    assert status == 0, errors
    return output
