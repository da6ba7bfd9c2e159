import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from attendant.runtime.errors import UserError
from attendant.runtime.files import write_json
from attendant.training.run import directory as run
from attendant.training.run.directory import Run, versions
from attendant.training.run.loading import load_run
from tests.paths import ROOT


@pytest.mark.parametrize(("is_exact", "library"), [(True, "onednn"), (False, "torch")])
def test_versions_record_the_libraries_that_determine_results(
    is_exact: bool, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "onednn_is_exact", lambda: is_exact)
    result = versions()
    assert result["float32_products"] == library
    assert {"attendant", "commit", "platform", "processor", "python", "torch"} < set(result)
    assert all(isinstance(value, str) for value in json.loads(json.dumps(result)).values())


def test_a_run_without_a_length_ratio_that_a_bundle_can_have_has_none(tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(ROOT / "models" / "runs" / "normalize-numbers-en", path, symlinks=True)
    facts = json.loads((path / "data.json").read_text())
    assert load_run(path).max_length_ratio == facts.pop("max_length_ratio")
    for recorded in ({}, {"max_length_ratio": 100.5}):  # earlier versions; a source of one token with a long target
        (path / "data.json").write_text(json.dumps(facts | recorded))
        assert load_run(path).max_length_ratio is None


@pytest.mark.parametrize(
    ("file", "key"),
    [
        ("data.json", "digest"),
        ("versions.json", "commit"),
        ("checkpoints/best/state.json", "sha256"),
        ("checkpoints/best/state.json", "training"),
    ],
)
def test_a_key_that_is_missing_is_named(tmp_path: Path, file: str, key: str) -> None:
    path = tmp_path / "run"
    shutil.copytree(ROOT / "models" / "runs" / "normalize-numbers-en", path, symlinks=True)
    content = json.loads((path / file).read_text())
    del content[key]
    (path / file).write_text(json.dumps(content))
    with pytest.raises(UserError, match=f"{Path(file).name}: can't be read: it lacks '{key}'"):
        load_run(path)


def test_a_missing_file_is_named_once(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    with pytest.raises(UserError) as refused:
        run.read_json(path, dict)
    assert str(refused.value) == f"{path}: can't be read: No such file or directory"


def test_a_tokenizer_that_this_user_may_not_read_has_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("attendant.training.run.directory.Tokenizer.from_file", denied)
    with pytest.raises(
        UserError, match=r"source_tokenizer\.json: can't be read: Permission denied: give user \d+ access"
    ):
        Run(tmp_path).tokenizers()


@pytest.mark.parametrize("content", ["", "[", "{}", "[1]", '[{"metric": "wer"}]'])
def test_damaged_measurements_are_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "recipe.toml").touch()
    (tmp_path / "evaluation.json").write_text(content)
    with pytest.raises(UserError, match=r"evaluation\.json: can't be read: "):
        Run(tmp_path).record_evaluations([], "sha256:1")


def test_evaluations_that_end_at_once_are_all_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "recipe.toml").touch()
    metrics = ["wer", "per", "cer", "bleu"]

    def written_late(path: Path, content: Any) -> None:
        time.sleep(0.02)  # all that read before a record is whole would lose it
        write_json(path, content)

    monkeypatch.setattr(run, "write_json", written_late)
    with ThreadPoolExecutor(len(metrics)) as pool:
        for metric in metrics:
            entry = {"metric": metric, "value": 1.0, "protocol": "greedy", "num_examples": 1}
            pool.submit(Run(tmp_path).record_evaluations, [entry], "sha256:1")
    assert {entry["metric"] for entry in Run(tmp_path).evaluations()} == set(metrics)
