"""The checks of a processor pass on this host, and fail if anything that they look at is wrong."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from attendant.runtime.bundle.bundle import open_bundle
from tests.processors import checks

STORED = Path(__file__).parents[1] / "bundle_formats" / "1"
"""Stored, not exported: these tests need no torch."""


def test_this_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = tmp_path / "scores.json"
    assert checks.main([str(STORED), "--write", str(scores)]) == 0
    assert any(target.token_log_probs for targets in checks.read_scores(scores).values() for target in targets)
    assert checks.main([str(STORED), "--compare", str(scores)]) == 0
    assert " fp32: ok" in capsys.readouterr().out


@pytest.mark.parametrize(("factor", "fails"), [(1.0 + 1e-7, False), (1.001, True), (float("nan"), True)])
def test_other_scores_fail(factor: float, fails: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = tmp_path / "scores.json"
    checks.main([str(STORED), "--write", str(scores)])
    content = json.loads(scores.read_text())
    for targets in content.values():
        targets[-1]["token_log_probs"][-1] *= factor
    scores.write_text(json.dumps(content))
    assert checks.main([str(STORED), "--compare", str(scores)]) == int(fails)
    assert ("scores differ" in capsys.readouterr().out) is fails


def test_dependence_on_batch_mates_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    decode = checks.decode_all

    def disturbed(stepper, sources, *options):  # type: ignore[no-untyped-def]
        decoded = decode(stepper, sources, *options)
        return [tuple(each._replace(score=each.score + 1e-12) for each in nbest) if len(sources) > 1 else nbest
                for nbest in decoded]  # fmt: skip

    monkeypatch.setattr(checks, "decode_all", disturbed)
    assert checks.main([str(STORED)]) == 1
    assert "alone and in a batch differ" in capsys.readouterr().out


def test_wrong_golden_examples_fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = open_bundle(STORED)
    wrong = bundle.golden[0].model_copy(update={"log_prob": bundle.golden[0].log_prob - 1})
    monkeypatch.setattr(checks, "open_bundle", lambda path: replace(bundle, golden=(wrong, *bundle.golden[1:])))
    assert checks.main([str(STORED)]) == 1
    assert "log_prob is" in capsys.readouterr().out
