"""Virtual environments for other toolkits, installed once and kept."""

import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

TORCH = f"torch=={version('torch').partition('+')[0]}"
"""The very torch that Attendant trains with: what is compared are the toolkits."""


class InstallationFailed(Exception):
    """pip said no; the last lines that it wrote."""


@dataclass(frozen=True, slots=True)
class Environment:
    """One toolkit's environment.

    Attributes:
        toolkit: its requirement; installed without its dependencies, whose pins are older than TORCH.
        dependencies: of them, what training needs.
    """

    toolkit: str
    dependencies: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.toolkit.partition("==")[0].lower()

    @property
    def version(self) -> str:
        return self.toolkit.partition("==")[2]

    def python(self, cache: Path) -> Path:
        return cache / self.name / "bin" / "python"

    def install(self, cache: Path, torch_index: str | None) -> None:
        """Makes the environment where it is not there, complete, yet.

        Args:
            cache: the folder of all environments.
            torch_index: an index with a CPU build of torch beside pip's usual one.

        Raises:
            InstallationFailed: with pip's words.
        """
        folder = cache / self.name
        done = folder / "installed.txt"
        wanted = "\n".join((TORCH, self.toolkit, *self.dependencies)) + "\n"
        if done.exists() and done.read_text(encoding="utf-8") == wanted:
            return
        _run([sys.executable, "-m", "venv", "--clear", str(folder)])
        pip = [str(self.python(cache)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        index = [] if torch_index is None else ["--extra-index-url", torch_index]
        _run([*pip, *index, TORCH])
        _run([*pip, *self.dependencies])
        _run([*pip, "--no-deps", self.toolkit])
        done.write_text(wanted, encoding="utf-8")


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise InstallationFailed("\n".join([" ".join(command), *done.stdout.splitlines()[-5:]]))
