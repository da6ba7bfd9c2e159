"""From a recipe to answers, by the very commands that a user types, on a toy that needs no network."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from attendant_client import AttendantClient
from tests.paths import ROOT


def command(*arguments: str, folder: Path) -> str:
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'client'}"}
    run = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`reverse`: trained, evaluated and exported."""
    folder = tmp_path_factory.mktemp("whole_way")
    command("training", str(ROOT / "recipes/reverse"), "--output", "runs/reverse", folder=folder)
    command("training", "evaluate", "runs/reverse", folder=folder)
    command("export", "runs/reverse", "--output", "bundles/reverse", folder=folder)
    return folder / "bundles/reverse"


def test_the_model_has_learned_its_task(bundle: Path) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text())
    (exact_match,) = [entry for entry in manifest["evaluation"] if entry["metric"] == "exact_match"]
    assert exact_match["value"] >= 95
    assert exact_match["num_examples"] >= 100


async def test_it_answers_over_grpc(bundle: Path) -> None:
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'client'}"}
    arguments = [sys.executable, "-m", "server", str(bundle), "--port", "0", "--metrics-port", "0"]
    with subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            address = server.stdout.readline().split()[2].rstrip(":")
            async with AttendantClient(address) as client:
                words = ["ab", "face", "badge", "hijgf"]
                found = [await client.generate(word, beam_size=3, num_hypotheses=3) for word in words]
                assert [answer.best.text.replace(" ", "") for answer in found] == [word[::-1] for word in words]
                scored = await client.score(words[-1], found[-1].best.text)
                assert scored.log_prob == pytest.approx(found[-1].best.log_prob, abs=1e-5)
        finally:
            server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=30) == 0
