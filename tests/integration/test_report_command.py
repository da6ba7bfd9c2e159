"""Tests of the commands from a training to its report."""

import itertools
import re
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import pytest
import torch

from attendant.runtime.command import run_command
from attendant.training.__main__ import main
from tests.pages import read_page

RECIPE = """
[data]
train = "train.tsv"
validation = "held_out.tsv"
test = "held_out.tsv"
max_source_tokens = 9
max_target_tokens = 9
[source]
tokenizer = "character"
[target]
tokenizer = "word"
[model]
embedding_size = 8
hidden_size = 16
encoder.hidden_size = 8
[batches]
max_tokens = 64
[optimizer]
learning_rate = 0.02
[training]
max_epochs = 3
num_threads = 1
device = "cpu"
log_every_steps = 2
[validation]
metric = "per"
[evaluation]
metrics = ["wer", "per"]
"""
HOSTILE = "<script>alert(1)</script>"


def run(*arguments: str) -> int:
    """Runs `python -m training ...` in this process; returns its exit status."""
    return run_command("training", lambda: main(arguments))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Trains two runs, `lstm` and `no <attention>`; yields their folder, which also has the data."""
    folder = tmp_path_factory.mktemp("report")
    words = ["".join(letters) for size in (2, 3, 4) for letters in itertools.product("abcd", repeat=size)][::2]
    pairs = [f"{word}\t{' '.join(word)}\n" for word in words]
    (folder / "train.tsv").write_text("".join(pairs[::2]))
    (folder / "held_out.tsv").write_text("".join(pairs[1::2]) + f"{HOSTILE}\t<b>a</b>\n")
    (folder / "tiny.toml").write_text(RECIPE)
    num_threads = torch.get_num_threads()
    with chdir(folder):
        assert run("tiny.toml", "--output", "lstm") == 0
        assert run("tiny.toml", "--output", "no <attention>", "--set", 'model.attention.score="none"') == 0
    yield folder
    torch.set_num_threads(num_threads)


@pytest.fixture
def folder(trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """Changes to the folder `trained`, and drops the output so far."""
    monkeypatch.chdir(trained)
    capsys.readouterr()
    return trained


def test_a_run_becomes_one_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "mine.txt").write_text(f"abca\n{HOSTILE}\n")
    assert run("report", "lstm", "--examples", "mine.txt") == 0
    assert capsys.readouterr().out == "lstm/report.html\n"
    page = read_page((folder / "lstm/report.html").read_text())
    assert "script" not in page.elements and not page.handlers
    assert all(reference.startswith("#") for reference in page.references)
    assert len(page.ids) == len(set(page.ids))
    assert page.text.count(HOSTILE) >= 1
    headings = ["Results", "Learning", "Quality by source length", "How far back the loss reaches", "Attention"]
    assert all(heading in page.text for heading in headings)
    # The plots: learning 4, length 2, gradients 2; attention of two chosen examples and of the three worst.
    assert page.elements.count("svg") == 4 + 2 + 2 + 2 + 3
    value = re.search(r'"value": ([\d.]+)', (folder / "lstm/evaluation.json").read_text())
    assert value and f"{float(value[1]):.2f}" in page.text
    assert 'metric = "per"' in page.text and "torch" in page.text


def test_runs_are_compared_in_both_forms(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("report", "lstm", "no <attention>", "--output", "both.html", "--output", "both.md") == 0
    assert capsys.readouterr().out == "both.html\nboth.md\n"
    page = read_page((folder / "both.html").read_text())
    assert "model.attention.score" in page.text and "Differences are to A lstm" in page.text
    assert "This model has no attention" in page.text and "B no <attention>" in page.text
    text = (folder / "both.md").read_text()
    pictures = set(re.findall(r"\]\((both_pictures/[^)]*)\)", text))
    assert {str(path.relative_to(folder)) for path in (folder / "both_pictures").iterdir()} == pictures
    assert len(pictures) == page.elements.count("svg")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lstm", "lstm"], "give --output"),
        (["lstm", "--output", "report.pdf"], "must end in .html or .md"),
        (["lstm", "--examples", "nowhere.txt"], "there is no such file"),
        (["."], "is neither a run"),
    ],
)
def test_a_mistake_is_reported_in_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert run("report", *arguments) == 2
    errors = capsys.readouterr().err
    assert message in errors and errors.count("\n") == 1
