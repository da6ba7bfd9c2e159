"""Debian packages and indexes through apt, without root: lists and caches are apt's own, but in a private directory.

The machine's sources, keys and proxies hold; what its configuration says of languages and compression doesn't.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from attendant.runtime.errors import UserError

LEFT_OUT = ("Acquire::Languages", "APT::Update::")
"""Lists among the machine's settings, which a later line would only add to: languages, and hooks that tidy up."""


class Apt:
    """apt with an up-to-date index in a directory of its own.

    Attributes:
        lists: the directory of the indexes (`..._Packages`, `..._Translation-en`), uncompressed.
        root: where packages are unpacked.
        architecture: of this machine, as Debian names it.
    """

    def __init__(self, folder: Path) -> None:
        """Downloads the indexes into an empty folder.

        Raises UserError where this is no machine with apt, or it has no network.
        """
        for tool in ("apt-get", "apt-config", "dpkg-deb"):
            if shutil.which(tool) is None:
                raise UserError(f"{tool} is needed and not here: build this data set on Debian or Ubuntu, and copy it")
        self._folder = folder
        self.lists = folder / "state" / "lists"
        self.root = folder / "root"
        for path in (self.lists / "partial", folder / "cache" / "archives" / "partial", folder / "parts"):
            path.mkdir(parents=True)
        (folder / "status").touch()
        self._environment = os.environ | {"APT_CONFIG": str(self._configuration()), "LC_ALL": "C"}
        self.architecture = self._run("apt-config", "--format=%v", "dump", "APT::Architecture").strip()
        self._run("apt-get", "update")

    def download(self, packages: Sequence[str]) -> dict[str, str]:
        """Unpacks packages, without installing them, side by side under `root`. Returns package -> version. Raises
        UserError: a package does not exist here.
        """
        self._run("apt-get", "download", *packages)
        versions = {}
        for archive in sorted(self._folder.glob("*.deb")):
            name, version = self._run("dpkg-deb", "--show", str(archive)).split()
            self._run("dpkg-deb", "--extract", str(archive), str(self.root))
            versions[name] = version
        return versions

    def _configuration(self) -> Path:
        machine = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True).stdout
        kept = [line for line in machine.splitlines() if not line.startswith(LEFT_OUT)]
        settings = {
            "Dir::State": self._folder / "state",
            "Dir::State::status": self._folder / "status",
            "Dir::Cache": self._folder / "cache",
            "Dir::Etc::main": os.devnull,
            "Dir::Etc::parts": self._folder / "parts",
            "Acquire::Languages": "en",
            "Acquire::GzipIndexes": "false",
        }
        kept += [f'{name} "{value}";' for name, value in settings.items()]
        path = self._folder / "apt.conf"
        path.write_text("\n".join(kept) + "\n", encoding="utf-8")
        return path

    def _run(self, *command: str) -> str:
        done = subprocess.run(
            command, cwd=self._folder, env=self._environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.startswith("E:")] or done.stderr.splitlines()
            raise UserError(
                f"`{' '.join(command[:2])}` failed ({said[0] if said else 'it said nothing'}): is there a network, and "
                "do apt's sources name a Debian archive?"
            )
        return done.stdout
