"""Third-party programs, each in its own environment from PyPI."""

import subprocess
from pathlib import Path

import pytest

from benchmarks.harness import ENVIRONMENTS, Unavailable
from tests.paths import ROOT


def python_of(name: str) -> Path:
    """Returns the interpreter of an environment that benchmarks/data/environments.toml describes."""
    try:
        return ENVIRONMENTS[name].install(ROOT / ".benchmarks")
    except Unavailable as reason:
        pytest.skip(f"{name} can't be installed: {reason}")


def run(python: Path, *arguments: object, stdin: str = "", **variables: str) -> str:
    """Runs Python with these arguments; returns its output."""
    done = subprocess.run(
        [python, "-P", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", **variables},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
