"""Tests of third-party packages: no name of ours is looked up on an index, and deploy/locks is complete. Actions and
images of others are pinned by their digests.

`make audit` runs this, and tools for licences and known vulnerabilities.
"""

import itertools
import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.paths import ROOT

MAKEFILE = (ROOT / "Makefile").read_text()
SHIPPED = re.findall(r"^SHIPPED := (.*)$", MAKEFILE, re.MULTILINE)[0].split()
WITH_CUDA = re.compile(r"onnxruntime-gpu|triton|(cuda|nvidia)-.*")


def read_project(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text())


def dependencies_of(root: Path) -> list[str]:
    """Returns the requirements of both distributions; the server's list is in a separate table, for setup.py."""
    server, client = read_project(root), read_project(root / "client")
    extras = [project["project"].get("optional-dependencies", {}).values() for project in (server, client)]
    required = [*server["tool"]["attendant"]["dependencies"], *client["project"]["dependencies"]]
    return [*required, *itertools.chain(*itertools.chain(*extras))]


def name_of(requirement: str) -> str:
    return canonicalize_name(Requirement(requirement).name)


def locked(path: Path) -> dict[str, tuple[str, int]]:
    """Returns the version and the number of hashes of each package."""
    blocks = re.split(r"\n(?=\S)", path.read_text(encoding="utf-8"))
    matches = [(re.match(r"([A-Za-z0-9._-]+)==(\S+)", block), block) for block in blocks]
    hashes = re.compile(r"--hash=sha256:[0-9a-f]{64}")
    return {canonicalize_name(m[1]): (m[2], len(hashes.findall(block))) for m, block in matches if m}


def unknown_names(root: Path) -> Iterator[str]:
    """Yields requirements that pip would look up although they are ours, or that constraints.txt lacks."""
    own, known = canonicalize_name(read_project(root)["project"]["name"]), locked(root / "constraints.txt")
    # `attendant-seq2seq[training]` within its own extras is the distribution that is being installed.
    yield from (text for text in dependencies_of(root) if name_of(text) != own and name_of(text) not in known)


def problems_of(locks: Path) -> Iterator[str]:
    """Yields locked packages without a hash or of other versions than constraints.txt, and missing packages."""
    versions = {name: version for name, (version, _) in locked(locks / "build.txt").items()}
    versions |= {name: version for name, (version, _) in locked(ROOT / "constraints.txt").items()}
    for path in sorted(locks.glob("*.txt")):
        for name, (version, num_hashes) in locked(path).items():
            if not num_hashes:
                yield f"{path.name}: {name} has no hash"
            if path.stem in SHIPPED and versions.get(name) != version:
                yield f"{path.name}: {name} is {version}"
    needed = set(map(name_of, read_project(ROOT)["tool"]["attendant"]["dependencies"]))
    for lock, runtime in (("server-cpu", "onnxruntime"), ("server-gpu", "onnxruntime-gpu")):
        for name in (needed | {runtime}) - locked(locks / f"{lock}.txt").keys():
            yield f"{lock}.txt: {name} is missing"


def test_no_name_of_ours_is_looked_up_and_every_lock_is_complete() -> None:
    """`make constraints locks` writes the files."""
    assert list(unknown_names(ROOT)) == []
    assert list(problems_of(ROOT / "deploy" / "locks")) == []


def test_licences_of_all_shipped_packages_can_be_read_here() -> None:
    """The licences are read from installed packages; CUDA's packages are installed only with a GPU."""
    installed = {canonicalize_name(distribution.metadata["Name"]) for distribution in distributions()}
    shipped = {name for lock in SHIPPED for name in locked(ROOT / "deploy" / "locks" / f"{lock}.txt")}
    assert [name for name in sorted(shipped - installed) if not WITH_CUDA.fullmatch(name)] == []


WORKFLOWS = "".join(path.read_text() for path in (ROOT / ".github/workflows").glob("*.yml"))


def test_actions_and_images_of_others_are_named_by_their_digests() -> None:
    used = re.findall(r"uses: (\S+)", WORKFLOWS)
    assert used and all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", name) for name in used)
    pulled = re.findall(r"^ +image: (\S+/\S+)", (ROOT / "compose.yaml").read_text(), re.MULTILINE)
    assert pulled and all(re.fullmatch(r"\S+:v?[\d.]+@sha256:[0-9a-f]{64}", name) for name in pulled)
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert re.search(r"^ARG BASE=\S+@sha256:[0-9a-f]{64}$", dockerfile, re.MULTILINE)
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", dockerfile, re.MULTILINE))
    assert set(re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)) <= {"${BASE}", "scratch"} | stages


def test_the_oldest_python_that_is_declared_can_install_everything() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    oldest = declared.removeprefix(">=") + ".0"
    constrained = {line.partition("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    required = {
        each.name: each.metadata.get("Requires-Python") for each in distributions() if each.name.lower() in constrained
    }
    assert len(required) > 50
    assert [name for name, versions in required.items() if not SpecifierSet(versions or "").contains(oldest)] == []
