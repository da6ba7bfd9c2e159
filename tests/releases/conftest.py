"""The released files, made once per session by the commands that make a release."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder with both wheels and both source archives."""
    return built(tmp_path_factory.mktemp("dist"))


def built(folder: Path, umask: int = 0o022, **environment: str) -> Path:
    """Builds both distributions with `make dist`; returns their folder."""
    run = subprocess.run(
        ["make", "dist", f"DIST={folder}", f"PYTHON={sys.executable}"],
        cwd=ROOT,
        env=os.environ | environment,
        umask=umask,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return folder
