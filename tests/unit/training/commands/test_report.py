"""Tests of `report` from end to end: the page of a run, and the comparison of runs."""

import json
import re
from pathlib import Path

from tests.pages import read_page
from tests.unit.training.conftest import Command, CopyRun, Runs

HOSTILE = "<script>alert(1)</script>"


def test_a_run_becomes_one_page(tmp_path: Path, finished_run: Path, command: Command) -> None:
    (tmp_path / "mine.txt").write_text(f"abca\n{HOSTILE}\n")
    status, message, errors = command("report", finished_run, "--examples", tmp_path / "mine.txt")
    assert (status, message) == (0, f"{finished_run}/report.html\n"), errors
    page = read_page((finished_run / "report.html").read_text())
    assert "script" not in page.elements and HOSTILE in page.text
    for heading in ("Results", "Learning", "Quality by source length", "How far back the loss reaches", "Attention"):
        assert heading in page.text
    # The plots: learning 4, length 2, gradients 2; attention of two chosen examples and of the three worst.
    assert page.elements.count("svg") == 4 + 2 + 2 + 2 + 3
    value = json.loads((finished_run / "evaluation.json").read_text())[0]["value"]
    assert f"{value:.2f}" in page.text
    assert 'metric = "exact_match"' in page.text and "torch" in page.text


def test_runs_are_compared_in_both_forms(
    tmp_path: Path, finished_run: Path, copy_run: CopyRun, command: Command, refused: Runs
) -> None:
    other = copy_run("no <attention>", "training.max_epochs=1", "model.attention.score=none")
    assert "give --output" in refused("report", finished_run, other)
    outputs = tmp_path / "both.html", tmp_path / "both.md"
    status, message, errors = command("report", finished_run, other, "--output", outputs[0], "--output", outputs[1])
    assert (status, message) == (0, f"{outputs[0]}\n{outputs[1]}\n"), errors
    page = read_page(outputs[0].read_text())
    assert "model.attention.score" in page.text and "This model has no attention" in page.text
    assert "B no <attention>" in page.text
    pictures = set(re.findall(r"\]\((both_pictures/[^)]*)\)", outputs[1].read_text()))
    assert {str(path.relative_to(tmp_path)) for path in (tmp_path / "both_pictures").iterdir()} == pictures
    assert len(pictures) == page.elements.count("svg")
