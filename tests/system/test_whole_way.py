"""Tests of a user's commands from a recipe to answers, on toys that need no network."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from attendant_client import AttendantClient
from tests.paths import ROOT

ENVIRONMENT = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'client'}"}


def command(*arguments: str, folder: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr


def exact_match(evaluations: Path) -> float:
    """Returns the only exact match that a run or a manifest records."""
    content = json.loads(evaluations.read_text())
    entries = content if isinstance(content, list) else content["evaluation"]
    (entry,) = [entry for entry in entries if entry["metric"] == "exact_match"]
    assert entry["num_examples"] >= 100
    return float(entry["value"])


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trains, evaluates and exports `reverse`, named by its folder; returns the bundle."""
    folder = tmp_path_factory.mktemp("whole_way")
    command("training", str(ROOT / "recipes/reverse"), folder=folder)
    command("training", "evaluate", "runs/reverse", folder=folder)
    command("export", "runs/reverse", "--output", "bundles/reverse", folder=folder)
    return folder / "bundles/reverse"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("recipe", "at_least"), [("copy", 97.0), ("dates", 98.0)])
def test_a_toy_task_is_learned(recipe: str, at_least: float, tmp_path: Path) -> None:
    command("training", recipe, "--output", "run", folder=tmp_path)
    assert exact_match(tmp_path / "run/evaluation.json") >= at_least


@pytest.mark.slow
async def test_a_learned_model_answers_over_grpc(bundle: Path) -> None:
    """tests/integration/test_export_command.py and test_server_process.py run each command, on models less trained."""
    assert exact_match(bundle / "manifest.json") >= 95
    arguments = [sys.executable, "-m", "server", str(bundle), "--port", "0", "--metrics-port", "0"]
    with subprocess.Popen(arguments, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            address = server.stdout.readline().split()[2].rstrip(":")
            async with AttendantClient(address) as client:
                words = ["ab", "face", "badge", "hijgf"]
                answers = [await client.generate(word, beam_size=3, num_hypotheses=3) for word in words]
                assert [answer.best.text.replace(" ", "") for answer in answers] == [word[::-1] for word in words]
                scored = await client.score(words[-1], answers[-1].best.text)
                assert scored.log_prob == pytest.approx(answers[-1].best.log_prob, abs=1e-5)
        finally:
            server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=30) == 0
