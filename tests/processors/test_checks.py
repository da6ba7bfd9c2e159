"""Tests of a processor's checks, on this host."""

import json
from pathlib import Path

import pytest

from tests.processors import checks

STORED = Path(__file__).parents[1] / "bundle_formats" / "1"
"""A stored bundle: these tests don't export one, so they need no torch."""


def test_checks_on_this_host_pass_and_report_scores_that_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = tmp_path / "scores.json"
    assert checks.main([str(STORED), "--write", str(scores)]) == 0
    assert any(target.token_log_probs for targets in checks.read_scores(scores).values() for target in targets)
    assert checks.main([str(STORED), "--compare", str(scores)]) == 0
    assert " fp32: ok" in capsys.readouterr().out
    # Another host's scores, of which one differs.
    content = json.loads(scores.read_text())
    next(target for targets in content.values() for target in targets)["token_log_probs"][0] += 0.01
    scores.write_text(json.dumps(content))
    assert checks.main([str(STORED), "--compare", str(scores)]) == 1
    assert "scores differ by 0.01" in capsys.readouterr().out


def test_kernels_that_are_wrong_everywhere_differ_in_half_of_the_tokens() -> None:
    right = [checks.ScoredTarget(["a", "b", "</s>"], [-0.1, -0.2, -0.3])]
    rounded = [checks.ScoredTarget(["a", "b", "</s>"], [-0.1, -0.22, -0.3])]
    wrong = [checks.ScoredTarget(["a", "b", "</s>"], [-0.1, -0.22, -0.31])]
    assert list(checks.differences(rounded, right, checks.MAX_OF_INT8)) == []
    (line,) = checks.differences(wrong, right, checks.MAX_OF_INT8)
    assert line.startswith("half of the tokens")
