"""`python -m training label`: outputs as pairs, interrupted and resumed, and what it refuses."""

from collections.abc import Callable
from pathlib import Path

import pytest

from attendant.training.commands import runs

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    path = tmp_path / "words.txt"
    path.write_text("ab\ncd\n\nabc\nab\nbcd\n")
    return path


def test_each_source_once_with_its_output(tmp_path: Path, finished_run: Path, sources: Path, command: Command) -> None:
    status, said, errors = command("label", finished_run, "--sources", sources, "--output", tmp_path / "out.tsv")
    assert status == 0, errors
    rows = [line.split("\t") for line in (tmp_path / "out.tsv").read_text().splitlines()]
    labelled = [source for source, _ in rows]
    assert labelled == [source for source in ("ab", "cd", "abc", "bcd") if source in labelled]
    assert len(labelled) == 4 or f"{4 - len(labelled)} sources have an empty output" in said
    assert rows and all(target.strip() for _, target in rows)
    # A .tsv gives its first column: an output can be labelled again, by an ensemble as well.
    status, _, errors = command(
        "label", finished_run, finished_run, "--sources", tmp_path / "out.tsv", "--output", tmp_path / "again.tsv"
    )
    assert status == 0, errors
    assert (tmp_path / "again.tsv").read_text() == (tmp_path / "out.tsv").read_text()


def test_it_goes_on_where_it_was_interrupted(
    tmp_path: Path, finished_run: Path, sources: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "CHUNK", 1)
    whole, cut = tmp_path / "whole.tsv", tmp_path / "cut.tsv"
    assert command("label", finished_run, "--sources", sources, "--output", whole)[0] == 0
    content = whole.read_text()
    cut.write_text(content[: content.index("\n") + 4])  # in the middle of the second line
    status, _, errors = command("label", finished_run, "--sources", sources, "--output", cut)
    assert status == 2 and "--resume" in errors
    assert command("label", finished_run, "--sources", sources, "--output", cut, "--resume")[0] == 0
    assert cut.read_text() == content


def test_what_can_be_labelled_by_nobody_is_refused(tmp_path: Path, finished_run: Path, command: Command) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("\n")
    for path, words in ((empty, "no source"), (tmp_path / "none.txt", "no such file")):
        status, _, errors = command("label", finished_run, "--sources", path, "--output", tmp_path / "out.tsv")
        assert status == 2 and words in errors and "Traceback" not in errors
    words = tmp_path / "words.txt"
    words.write_text("ab\n")
    status, _, errors = command("label", finished_run, "--sources", words, "--output", tmp_path / "no" / "out.tsv")
    assert status == 2 and "there is no directory" in errors
    bad = tmp_path / "bad.tsv"
    bad.write_bytes(b"\xff\ta\n")
    status, _, errors = command("label", finished_run, "--sources", words, "--output", bad, "--resume")
    assert status == 2 and "is not UTF-8" in errors
    assert not (tmp_path / "out.tsv").exists()
