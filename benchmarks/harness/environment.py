"""What peers need, made once and kept: environments, each from PyPI into a folder of its own, and models."""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from string import Template

from attendant.runtime.files import new_folder
from benchmarks.harness.measurement import Unavailable
from benchmarks.harness.process import output_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """One peer's environment, an entry of environments.toml.

    Attributes:
        package: the peer itself, with its version.
        requirements: what else pip installs.
        own_dependencies: whether the package's own list of dependencies is followed; some pin what is too old.
        interpreters: the first of these that is here and starts makes the environment; none: this Python. A name is
            looked for on the path, then among pyenv's versions.
    """

    name: str
    package: str
    requirements: Sequence[str] = ()
    own_dependencies: bool = True
    interpreters: Sequence[str] = ()

    @property
    def version(self) -> str:
        return self.package.partition("==")[2]

    def install(self, cache: Path) -> Path:
        """The environment's interpreter; what is not complete in the cache's folder yet is made first.

        Raises:
            Unavailable: there is no such Python, or pip's words.
        """
        folder = cache / self.name
        python = folder / "bin" / "python"
        done, wanted = folder / "installed.txt", "\n".join([*self.requirements, self.package]) + "\n"
        if not done.exists() or done.read_text(encoding="utf-8") != wanted:
            output_of([self._interpreter(), "-m", "venv", "--clear", str(folder)])
            pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            if self.requirements:
                output_of([*pip, *self.requirements])
            output_of([*pip, *([] if self.own_dependencies else ["--no-deps"]), self.package])
            done.write_text(wanted, encoding="utf-8")
        return python

    def _interpreter(self) -> str:
        pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
        for name in self.interpreters or [sys.executable]:
            for path in (shutil.which(name), *map(str, sorted(pyenv.glob(f"versions/*/bin/{name}")))):
                # A launcher of several versions may be on the path and have none of this one.
                if path and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
                    return path
        raise Unavailable(f"it needs one of {', '.join(self.interpreters)}, and none is here")


TORCH = f"torch=={version('torch').partition('+')[0]}"
TEXT = Template(Path(__file__).with_name("environments.toml").read_text(encoding="utf-8")).substitute(torch=TORCH)
ENVIRONMENTS = {name: Environment(name=name, **entry) for name, entry in tomllib.loads(TEXT).items()}


def made_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """The folder; where it is not there yet, `make` fills an empty one that then takes its place."""
    if not folder.exists():
        with new_folder(folder) as new:
            make(new)
    return folder
