"""Tests of calibration: a bundle gets a confidence, answers with it, is measured, and is exported again with it."""

import json
from pathlib import Path
from typing import Any

import pytest

import attendant
from attendant.export import __main__ as export
from attendant.runtime.bundle.bundle import BIGRAMS_NAME, open_bundle
from attendant.runtime.command import run_command
from attendant.training import __main__ as training
from attendant_client.command import main
from tests.bundles import LETTERS

WORDS = [f"{a}{b}{c}{d}" for a in LETTERS[:5] for b in LETTERS[:4] for c in LETTERS[:4] for d in LETTERS[:4]]


def command(package: object, *arguments: object) -> int:
    return run_command("command", lambda: package.main([str(argument) for argument in arguments]))  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def pairs(tiny_bundle_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes words with the model's own answers, but a wrong target if the answer is short; returns the file."""
    with attendant.load(tiny_bundle_path) as model:
        answers = [answer.best for answer in model.generate(WORDS)]
    path = tmp_path_factory.mktemp("data") / "pairs.tsv"
    lines = [
        f"{word}\t{answer.text if len(answer.tokens) > 3 else 'AA ' * 9}\n"
        for word, answer in zip(WORDS, answers, strict=True)
    ]
    path.write_text("".join(lines))
    return path


@pytest.fixture(scope="module")
def calibrated(tiny_bundle_path: Path, pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundles") / "calibrated"
    options = "--data", pairs, "--training", pairs, "--right", "exact_match", "--output", path
    assert command(export, "reference", tiny_bundle_path, *options) == 0
    return path


def test_the_bundle_has_a_calibration_and_the_same_graphs(tiny_bundle_path: Path, calibrated: Path) -> None:
    old, new = open_bundle(tiny_bundle_path), open_bundle(calibrated)
    calibration = new.manifest.confidence
    assert calibration is not None and calibration.num_examples == len(WORDS)
    assert str(calibration.right) == "exact match"
    assert new.seen_bigrams is not None and new.seen_bigrams.unseen_share(new.source_tokenizer.encode(WORDS[0])) == 0
    assert {name: entry for name, entry in new.manifest.files.items() if name != BIGRAMS_NAME} == old.manifest.files
    assert new.manifest.digest != old.manifest.digest


def test_answers_have_a_confidence_alone_and_in_any_batch(calibrated: Path) -> None:
    calibration = open_bundle(calibrated).manifest.confidence
    assert calibration is not None
    with attendant.load(calibrated) as model:
        together = model.generate([*WORDS[:40], "jihg"])
        alone = [model.generate(word) for word in (*WORDS[:40], "jihg")]
        stream = model.stream("abcd")
        list(stream)
        assert stream.generation.best.confidence == model.generate("abcd").best.confidence
    assert [answer.best.confidence for answer in together] == [answer.best.confidence for answer in alone]
    assert alone[-1].best.confidence == calibration.probabilities[0]
    assert any(warning.startswith("the confidence is 0.") for warning in alone[-1].warnings)
    assert len({answer.best.confidence for answer in together}) > 2


def test_the_command_prints_the_confidence(calibrated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--bundle", str(calibrated), "--json", "jihg"]) == 0
    printed = capsys.readouterr()
    assert 0 <= json.loads(printed.out)["hypotheses"][0]["confidence"] < 0.1
    assert "attendant: the confidence is 0." in printed.err


def test_one_command_measures_the_calibration(
    calibrated: Path, pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = tmp_path / "foreign.txt"
    foreign.write_text("jihg\nhijj\nggii\n")
    options = "--data", pairs, "--confidence", "--foreign", foreign, "--bootstrap", 50
    assert command(training, "evaluate", calibrated, *options, "--chart", tmp_path / "chart.svg") == 0
    shown = capsys.readouterr().out
    for part in ("right: exact match", "expected calibration error", "AUROC", "0.0 to 0.1", "foreign.txt"):
        assert part in shown
    chart = (tmp_path / "chart.svg").read_text()
    assert chart.startswith("<svg") and "right answers, by confidence" in chart and "foreign (3)" in chart
    assert command(training, "evaluate", calibrated, *options, "--json", "--output", tmp_path / "results.json") == 0
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / "results.json").read_text())
    (result,) = json.loads((tmp_path / "results.json").read_text())["results"]
    assert result["num_examples"] == len(WORDS) and result["ece"]["value"] < 0.1
    assert result["foreign"][0]["warned"] == {"value": 1.0, "interval": {"high": 1.0, "low": 1.0}}


def test_exporting_a_bundle_keeps_its_calibration(calibrated: Path, tmp_path: Path) -> None:
    assert command(export, calibrated, "--output", tmp_path / "again") == 0
    old, again = open_bundle(calibrated), open_bundle(tmp_path / "again")
    assert again.manifest.confidence == old.manifest.confidence
    assert old.seen_bigrams is not None and again.seen_bigrams is not None
    assert again.seen_bigrams.content == old.seen_bigrams.content


def test_its_bigrams_serve_again_without_the_training_pairs(calibrated: Path, pairs: Path, tmp_path: Path) -> None:
    options = "--data", pairs, "--warn-below", "0.25", "--output", tmp_path / "other"
    assert command(export, "reference", calibrated, *options) == 0
    old, other = open_bundle(calibrated), open_bundle(tmp_path / "other")
    assert old.seen_bigrams is not None and other.seen_bigrams is not None
    assert other.seen_bigrams.content == old.seen_bigrams.content and BIGRAMS_NAME in other.manifest.files
    assert other.manifest.confidence is not None and "unseen_ratio" in other.manifest.confidence.signals
    assert other.manifest.confidence.warn_below == 0.25


@pytest.mark.parametrize(
    ("package", "arguments", "message"),
    [
        (training, "evaluate {calibrated} --confidence --beam-size 4", "--beam-size is not for --confidence"),
        (training, "evaluate {calibrated} --foreign x", "--foreign is for --confidence"),
        (training, "evaluate {calibrated} --confidence --foreign missing.txt", "missing.txt"),
        (training, "evaluate {tiny} --confidence", "has no calibration: attendant reference"),
        *(
            (export, f"reference {{tiny}} --output new --right {rule}", f"--right {rule}: must be exact_match, chrf")
            for rule in ("wer", "chrf:high", "chrf:-1", "chrf:0", "rouge", "exact_match:50")
        ),
    ],
)
def test_mistakes_are_status_2(
    package: object, arguments: str, message: str, tiny_bundle_path: Path, calibrated: Path, pairs: Path, capsys: Any
) -> None:
    words = arguments.format(calibrated=calibrated, tiny=tiny_bundle_path).split()
    assert command(package, *words, "--data", pairs) == 2
    assert message in capsys.readouterr().err
