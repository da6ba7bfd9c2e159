"""The checks of a processor pass on this host, and fail if anything that they look at is wrong."""

from pathlib import Path

import pytest

from tests.processors import checks

STORED = Path(__file__).parents[1] / "bundle_formats" / "1"
"""Stored, not exported: these tests need no torch."""


def test_this_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = tmp_path / "scores.json"
    assert checks.main([str(STORED), "--write", str(scores)]) == 0
    assert any(target.token_log_probs for targets in checks.read_scores(scores).values() for target in targets)
    assert checks.main([str(STORED), "--compare", str(scores)]) == 0
    assert " fp32: ok" in capsys.readouterr().out
