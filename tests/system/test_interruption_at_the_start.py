"""Ctrl-C while a command's libraries are still being imported: one line and status 130, as at any later moment."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PROGRAM = """
import runpy, sys

class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == {library!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupted())
sys.argv = {argv!r}
{run}
"""

ATTENDANT = "from attendant_client.command import main; sys.exit(main())"
MODULE = "runpy.run_module({name!r}, run_name='__main__', alter_sys=True)"


@pytest.mark.parametrize(
    ("library", "argv", "run", "name"),
    [
        ("grpc", ["attendant", "health"], ATTENDANT, "attendant"),
        ("torch", ["attendant", "train", "copy"], ATTENDANT, "attendant"),
        ("onnxruntime", ["attendant", "generate", "--bundle", "models/g2p-en", "a"], ATTENDANT, "attendant"),
        ("torch", ["training", "copy"], MODULE.format(name="attendant.training"), "training"),
        ("pydantic", ["export", "inspect", "models/g2p-en"], MODULE.format(name="attendant.export"), "export"),
        ("pydantic", ["server", "models/g2p-en"], MODULE.format(name="attendant.server"), "server"),
        ("grpc", ["server", "models/g2p-en"], MODULE.format(name="attendant.server"), "server"),
        ("torch", ["papers", "show", "which-attention"], MODULE.format(name="recipes.papers"), "recipes.papers"),
        ("ray", ["cluster", "serve", "models/g2p-en"], MODULE.format(name="attendant.server.cluster"), "cluster"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_one_line(library: str, argv: list[str], run: str, name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(library=library, argv=argv, run=run)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'client'}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", f"\n{name}: interrupted\n")
