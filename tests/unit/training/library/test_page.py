"""Tests that run the programs of docs/python.md, with fakes instead of the trackers and tqdm."""

import functools
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import attendant
from tests.bundles import TINY_PLAN
from tests.paths import ROOT

WALK, BAR, MLFLOW, WANDB = re.findall(r"```python\n(.*?)```", (ROOT / "docs/python.md").read_text(), re.DOTALL)


class Recorder(ModuleType):
    """A fake module, object or context manager. It records the calls of its functions, which return more recorders."""

    def __init__(self, name: str, calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]]) -> None:
        super().__init__(name)
        self.calls = calls

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*arguments: Any, **options: Any) -> "Recorder":
            self.calls.append((name, arguments, options))
            return Recorder(name, self.calls)

        return call

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *error: object) -> None:
        self.calls.append(("exit", error, {}))


@pytest.fixture
def calls(tmp_path: Path, tiny_recipe: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any, Any]]:
    """Replaces the trackers by fakes and enters a folder with recipes/mine.toml; returns the list of their calls."""
    calls: list[tuple[str, Any, Any]] = []
    for name in ("mlflow", "wandb", "tqdm", "tqdm.auto"):
        monkeypatch.setitem(sys.modules, name, Recorder(name, calls))
    (tmp_path / "recipes").mkdir()
    tiny_recipe.rename(tmp_path / "recipes/mine.toml")
    monkeypatch.chdir(tmp_path)
    return calls


def test_the_walkthrough_of_the_documentation_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(attendant, "export_run", functools.partial(attendant.export_run, plan=TINY_PLAN))
    assert len(WALK.strip().splitlines()) <= 30
    names: dict[str, Any] = {}
    exec(WALK, names)
    recipe, values, *tables, default, answer = capsys.readouterr().out.splitlines()
    assert recipe.startswith("recipe chosen from ") and set(eval(values)) == {"wer", "per"}
    assert any("beam 4" in line for line in tables)
    assert set(eval(default)) == {"cpu", "cuda"} and answer == "e c a f"
    assert names["run"]._repr_html_().count("<svg") >= 1
    assert names["model"].name == "backwards"


def test_the_documented_progress_bar_runs(calls: list[tuple[str, Any, Any]]) -> None:
    names: dict[str, Any] = {}
    exec(BAR, names)
    attendant.train("recipes/mine.toml", overrides={"training.max_steps": 3}, callbacks=[names["Bar"]()])
    assert [call[0] for call in calls] == ["tqdm", *["update", "set_postfix"] * 3, "close"]
    assert calls[0][2] == {"total": 3, "initial": 0}


def test_the_documented_mlflow_callback_logs_the_run(calls: list[tuple[str, Any, Any]]) -> None:
    exec(MLFLOW, {})
    assert [call[0] for call in calls[:3]] == ["start_run", "log_dict", "log_metrics"]
    assert calls[1][1][0]["model"]["hidden_size"] == 16 and calls[1][1][1] == "recipe.json"
    assert calls[2][2] == {"step": 2} and {"train/loss", "train/learning_rate"} <= set(calls[2][1][0])
    validations = [call for call in calls if call[0] == "log_metrics" and "validation/loss" in call[1][0]]
    assert [call[2]["step"] for call in validations] == [8, 16]
    assert set(calls[-2][1][0]) == {"test/wer", "test/per"} and calls[-1][:2] == ("exit", (None, None, None))


def test_the_documented_weights_and_biases_callback_logs_the_run(calls: list[tuple[str, Any, Any]]) -> None:
    exec(WANDB, {})
    name, _, options = calls[0]
    assert name == "init" and options["name"] == "mine" and options["config"]["optimizer.learning_rate"] == 0.02
    assert [call[0] for call in calls[1:]] == ["log"] * 10 + ["finish"]
    assert calls[1][2] == {"step": 2} and calls[-1][2] == {"exit_code": 0}
