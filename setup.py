"""Adds to pyproject.toml what depends on where the package is built: its version, its dependencies and its commit."""

import re
import runpy
import tomllib
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
CLIENT = ROOT / "client"


def version() -> str:
    """Returns the version, which both distributions share."""
    text = (CLIENT / "attendant_client" / "version.py").read_text(encoding="utf-8")
    return re.findall(r'^VERSION = "(.+)"$', text, re.MULTILINE)[0]


def client() -> str:
    """Returns the requirement for the client: in a checkout its folder, in a released archive its name and version.

    So an installation from a checkout never looks the name up on an index.
    """
    place = f" @ {CLIENT.resolve().as_uri()}" if (CLIENT / "pyproject.toml").exists() else f"=={version()}"
    return f"attendant-seq2seq-client{place}"


class BuildWithCommit(build_py):
    """Builds the modules, and writes the commit of a git checkout into the package."""

    def run(self) -> None:
        """Runs the build. Outside a checkout, what was packed stays as it is."""
        super().run()
        if not self.editable_mode:
            runtime = Path(self.build_lib, "attendant", "runtime")
            commit = runpy.run_path(str(ROOT / "attendant" / "runtime" / "commit.py"))["commit"]()
            (runtime / "commit.txt").write_text(f"{commit}\n", encoding="utf-8")


with (ROOT / "pyproject.toml").open("rb") as file:
    dependencies = tomllib.load(file)["tool"]["attendant"]["dependencies"]
setup(version=version(), install_requires=[client(), *dependencies], cmdclass={"build_py": BuildWithCommit})
