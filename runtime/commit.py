"""The git commit that this code was made from, for the provenance of runs and bundles.

setup.py and deploy/dist.py run this file alone, so it imports nothing of this project.
"""

import subprocess
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]  # The checkout, or the folder of the installed package.
COMMIT_FILE: Final = Path(__file__).with_name("commit.txt")
"""The commit for use without git: `git archive`, `make dist` and building a wheel or an image write it."""


def commit() -> str:
    """Returns the commit, with `-dirty` if tracked files were changed since; "unknown" if nothing records it."""
    if (ROOT / ".git").exists():
        command = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
        try:
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            pass  # git is not installed, or refuses another user's checkout
    recorded = COMMIT_FILE.read_text(encoding="utf-8").strip()
    return "unknown" if recorded.startswith("$") else recorded or "unknown"
