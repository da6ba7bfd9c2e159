"""The tasks that need no network are learned by their recipes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT


@pytest.mark.parametrize(
    ("recipe", "at_least"),
    [("copy", 97.0), pytest.param("dates", 98.0, marks=[pytest.mark.slow, pytest.mark.timeout(900)])],
)
def test_a_toy_is_learned(recipe: str, at_least: float, tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "training", recipe, "--output", "run"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(arguments, cwd=tmp_path, env=environment, check=True, stdout=subprocess.DEVNULL)
    recorded = json.loads((tmp_path / "run/evaluation.json").read_text())
    (found,) = [entry["value"] for entry in recorded if entry["metric"] == "exact_match"]
    assert found >= at_least
