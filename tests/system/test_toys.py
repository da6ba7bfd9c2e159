"""Tests that the toy recipes, which need no network, reach the results on their pages.

test_documents.py runs a user's commands from pairs to answers, and test_every_architecture.py calls trained models.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

import attendant
from tests.paths import ROOT

ENVIRONMENT = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'client'}"}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("recipe", "at_least"), [("copy", 97.0), ("reverse", 95.0), ("dates", 98.0)])
def test_a_toy_task_is_learned(recipe: str, at_least: float, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "training", recipe, "--output", "run"]
    process = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    entries = json.loads((tmp_path / "run/evaluation.json").read_text())
    (entry,) = [entry for entry in entries if entry["metric"] == "exact_match"]
    assert entry["num_examples"] >= 100 and entry["value"] >= at_least


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("count", [25, 60])
def test_a_handful_of_pairs_is_learned_by_heart(count: int, tmp_path: Path) -> None:
    words = random.Random(1).sample((ROOT / "README.md").read_text().split(), 10 * count)
    words = [word for word in dict.fromkeys(map(str.lower, words)) if word.isalpha()][:count]
    run = attendant.train([(word, word[::-1]) for word in words], output=tmp_path / "run")
    learned = attendant.evaluate(run, split="train")[0]
    assert learned.values["exact_match"] >= 90
