"""Tests of `average`, whose mean of the kept checkpoints is evaluated like a run, and of `label`, which writes sources
with their outputs: pairs, resuming and refusals.
"""

import json
import os
from pathlib import Path

import pytest
import torch

from attendant.runtime.files import lock
from attendant.training.commands import runs
from attendant.training.run.checkpoint import MODEL_FILE, load_tensors, validated_checkpoints
from attendant.training.run.directory import Run
from attendant.training.run.loading import load_run
from tests.unit.training.conftest import Command, CopyRun, Runs


@pytest.fixture
def finished(copy_run: CopyRun) -> Path:
    return copy_run("run", "training.keep_checkpoints=3", "validation.metric=loss", "validation.every_steps=4")


def test_the_last_validated_checkpoints_are_kept_and_averaged(tmp_path: Path, finished: Path, succeeds: Runs) -> None:
    kept = validated_checkpoints(Run(finished))
    assert [path.name for path in kept] == ["step-00000008", "step-00000012", "step-00000016"]
    assert "steps 12, 16" in succeeds("average", finished, "--last", 2, "--output", tmp_path / "mean")
    mean = load_run(tmp_path / "mean").model.state_dict()
    item, other = (load_tensors(path, MODEL_FILE) for path in kept[-2:])
    for name, weight in mean.items():
        torch.testing.assert_close(weight, (item[name] + other[name]) / 2)
    assert not torch.equal(mean["output.weight"], other["output.weight"])
    succeeds("evaluate", tmp_path / "mean", "--metrics", "wer")
    assert json.loads((tmp_path / "mean" / "evaluation.json").read_text())[0]["metric"] == "wer"


def test_resuming_the_training_of_an_average_is_refused(
    tmp_path: Path, finished: Path, refused: Runs, succeeds: Runs
) -> None:
    succeeds("average", finished, "--last", 3, "--output", tmp_path / "mean")
    error = refused(finished / "recipe.toml", "--output", tmp_path / "mean", "--resume")
    assert "averaged weights only, which can't be trained on" in error


def test_invalid_arguments_of_average_are_refused_in_one_line(tmp_path: Path, finished: Path, refused: Runs) -> None:
    for arguments, message in (
        ((finished, "--last", 4, "--output", tmp_path / "a"), "has 3 validated checkpoints, fewer than --last 4"),
        ((finished, "--last", 0, "--output", tmp_path / "a"), "--last 0: must be at least 1"),
        ((finished, "--output", finished), "exists: --output names another"),
        ((tmp_path / "none", "--output", tmp_path / "a"), "is not there: give a run's folder"),
    ):
        assert message in refused("average", *arguments)
    (finished / "versions.json").unlink()
    assert "versions.json: can't be read" in refused("average", finished, "--last", 3, "--output", tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    path = tmp_path / "words.txt"
    path.write_text("ab\ncd\n\nabc\nab\nbcd\nb\td\n" + f"{'ab ' * 10_000}\n")
    return path


def test_label_writes_each_source_once_with_its_output(
    tmp_path: Path, finished_run: Path, sources: Path, succeeds: Runs, refused: Runs
) -> None:
    message = succeeds("label", finished_run, "--sources", sources, "--output", tmp_path / "out.tsv")
    rows = [line.split("\t") for line in (tmp_path / "out.tsv").read_text().splitlines()]
    assert "1 sources have more than 20,000 characters: left out" in message
    labelled = [source for source, _ in rows]
    assert labelled == [source for source in ("ab", "cd", "abc", "bcd", "b d") if source in labelled]
    assert len(labelled) == 5 or f"{5 - len(labelled)} sources have an empty output" in message
    assert rows and all(target.strip() for _, target in rows)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pipe.open("r+b", buffering=0) as reader:  # Linux opens it without waiting for a writer.
        assert succeeds("label", finished_run, "--sources", sources, "--output", pipe) == ""
        assert reader.read(2**16) == (tmp_path / "out.tsv").read_bytes()
        assert "leave --resume out" in refused(
            "label", finished_run, "--sources", sources, "--output", pipe, "--resume"
        )
    # The sources of a .tsv are its first column, so an output file can be labelled again, here by an ensemble.
    succeeds("label", finished_run, finished_run, "--sources", tmp_path / "out.tsv", "--output", tmp_path / "again.tsv")
    assert (tmp_path / "again.tsv").read_text() == (tmp_path / "out.tsv").read_text()


def test_label_continues_after_an_interruption(
    tmp_path: Path,
    finished_run: Path,
    sources: Path,
    command: Command,
    succeeds: Runs,
    refused: Runs,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runs, "CHUNK", 1)
    whole, cut = tmp_path / "whole.tsv", tmp_path / "cut.tsv"
    succeeds("label", finished_run, "--sources", sources, "--output", whole)
    content = whole.read_text()
    cut.write_text(content[: content.index("\n") + 4])  # in the middle of the second line
    assert "--resume" in refused("label", finished_run, "--sources", sources, "--output", cut)
    for _ in range(2):
        succeeds("label", finished_run, "--sources", sources, "--output", cut, "--resume")
        assert cut.read_text() == content
    with cut.open("a") as writing:
        writing.write("not whole yet")
        writing.flush()
        lock(writing.fileno(), cut)
        error = refused("label", finished_run, "--sources", sources, "--output", cut, "--resume")
        assert "is writing to it" in error and cut.read_text() == f"{content}not whole yet"


def test_sources_that_can_not_be_labelled_are_refused(tmp_path: Path, finished_run: Path, refused: Runs) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("\n")
    table, loop = tmp_path / "pairs.CSV.gz", tmp_path / "loop"
    loop.symlink_to("loop")
    for path, words in (
        (empty, "no source"),
        (tmp_path / "none.txt", "no such file"),
        (table, "this is a table"),
        (loop, "loop: can't be read: Too many levels of symbolic links"),
    ):
        assert words in refused("label", finished_run, "--sources", path, "--output", tmp_path / "out.tsv")
    words = tmp_path / "words.txt"
    words.write_text("ab\n")
    error = refused("label", finished_run, "--sources", words, "--output", tmp_path / "no" / "out.tsv")
    assert "there is no directory" in error
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("ab\ta b\ncd\tc d")
    error = refused("label", finished_run, "--sources", pairs, "--output", pairs, "--resume")
    assert "would change" in error and pairs.read_text() == "ab\ta b\ncd\tc d"
    bad = tmp_path / "bad.tsv"
    bad.write_bytes(b"\xff\ta\n")
    assert "is not UTF-8" in refused("label", finished_run, "--sources", words, "--output", bad, "--resume")
    assert not (tmp_path / "out.tsv").exists()
