"""Fixtures of a small training that takes a second or less: it copies words of three letters."""

import contextlib
import functools
import io
import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

Command = Callable[..., tuple[int, str, str]]
Runs = Callable[..., str]
CopyRun = Callable[..., Path]

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


def write_recipe(folder: Path) -> Path:
    """Writes a recipe file and its data: 8 batches an epoch."""
    words = ["".join(letters) for letters in itertools.product("abcd", repeat=3)]
    for name, part in (("train", words[::2] + words[1::4]), ("validation", words[3::4])):
        (folder / f"{name}.tsv").write_text("".join(f"{word}\t{' '.join(word)}\n" for word in part))
    path = folder / "tiny.toml"
    path.write_text(RECIPE.format(folder=folder))
    return path


@pytest.fixture
def tiny_recipe(tmp_path: Path) -> Path:
    return write_recipe(tmp_path)


@pytest.fixture(autouse=True)
def _torch_threads(torch_threads: None) -> None:
    """Restores torch's number of threads after each test of this folder."""


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `python -m training ...` in this process; returns exit status, standard output and standard error."""
    from attendant.runtime.command import run_command
    from attendant.training.__main__ import main

    def run(*arguments: object) -> tuple[int, str, str]:
        status = run_command("training", lambda: main([str(argument) for argument in arguments]))
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture
def succeeds(command: Command) -> Runs:
    """Runs a command that must succeed; returns its standard output."""

    def run(*arguments: object) -> str:
        status, message, errors = command(*arguments)
        assert status == 0, errors
        return message

    return run


@pytest.fixture
def refused(command: Command) -> Runs:
    """Runs a command that must be refused in one line; returns this line."""

    def run(*arguments: object) -> str:
        status, _, errors = command(*arguments)
        assert status == 2 and len(errors.splitlines()) == 1, errors
        return errors

    return run


@pytest.fixture(scope="session")
def trained_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Trains the tiny recipe once per session for each tuple of overrides; tests must not change the folder."""
    import torch

    from attendant.runtime.command import run_command
    from attendant.training.__main__ import main

    @functools.cache
    def train(*overrides: str) -> Path:
        folder = tmp_path_factory.mktemp("trained")
        arguments = [str(write_recipe(folder)), "--output", str(folder / "run")]
        arguments += [part for override in overrides for part in ("--set", override)]
        threads = torch.get_num_threads()
        with contextlib.redirect_stdout(io.StringIO()):
            assert run_command("training", lambda: main(arguments)) == 0
        torch.set_num_threads(threads)
        return folder

    return train


@pytest.fixture
def copy_run(tmp_path: Path, tiny_recipe: Path, trained_folder: Callable[..., Path]) -> CopyRun:
    """Copies a finished run of the tiny recipe into the test's folder: `copy_run("other", "seed=2")`."""

    def copy(name: str, *overrides: str) -> Path:
        folder = trained_folder(*overrides)
        run = Path(shutil.copytree(folder / "run", tmp_path / name, symlinks=True))
        for path in run.rglob("*"):
            if path.suffix in (".toml", ".json", ".jsonl"):
                path.write_text(path.read_text().replace(str(folder), str(tmp_path)))
        return run

    return copy


@pytest.fixture
def finished_run(copy_run: CopyRun) -> Path:
    """Returns a finished run of one epoch."""
    return copy_run("run", "training.max_epochs=1")
