"""Corpora larger than memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def measure(output: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", "training", "--output", str(output), *options],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_five_million_pairs_train_within_three_gib(tmp_path: Path) -> None:
    done = measure(tmp_path, "--pairs", "5000000")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5,000,000" in done.stdout


@pytest.mark.slow
def test_a_peak_beyond_the_limit_fails(tmp_path: Path) -> None:
    done = measure(tmp_path, "--pairs", "2000", "--limit-gib", "0.01")
    assert done.returncode == 1 and "(limit 0.01)" in done.stderr
