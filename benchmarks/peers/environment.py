"""The peers' environments: each from PyPI into a folder of its own, made once and kept."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.training.environment import InstallationFailed

LAST_LINES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerEnvironment:
    """One peer's environment.

    Attributes:
        requirements: as pip takes them.
        interpreters: the first of these that is here and starts makes the environment; none: this Python. A name is
            looked for on the path, then among pyenv's versions.
    """

    name: str
    requirements: Sequence[str]
    interpreters: Sequence[str] = ()

    def python(self, cache: Path) -> Path:
        return cache / self.name / "bin" / "python"

    def install(self, cache: Path) -> Path:
        """Makes the environment where it is not there, complete, yet; returns its interpreter.

        Raises:
            InstallationFailed: there is no such Python, or pip's words.
        """
        folder = cache / self.name
        done, wanted = folder / "installed.txt", "\n".join(self.requirements) + "\n"
        if not done.exists() or done.read_text(encoding="utf-8") != wanted:
            _run([self._interpreter(), "-m", "venv", "--clear", str(folder)])
            pip = [str(self.python(cache)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            _run([*pip, *self.requirements])
            done.write_text(wanted, encoding="utf-8")
        return self.python(cache)

    def _interpreter(self) -> str:
        if not self.interpreters:
            return sys.executable
        for name in self.interpreters:
            for path in (shutil.which(name), *map(str, sorted(_pyenv().glob(f"versions/*/bin/{name}")))):
                # A launcher of several versions may be on the path and have none of this one.
                if path and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
                    return path
        raise InstallationFailed(f"it needs one of {', '.join(self.interpreters)}, and none is here")


def _pyenv() -> Path:
    return Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise InstallationFailed(" / ".join(done.stdout.strip().splitlines()[-LAST_LINES:]))
