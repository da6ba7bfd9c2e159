"""What we install from others: whose names, which versions and hashes, under which licences, with which known faults.

Run by `make audit`, in the environment that the tests run in; `--tools` is the Python of one with pip-audit and
cyclonedx-bom. Prints a line per check. Exit status 1 where one fails, or could not be made: a service that can't be
reached is no good news.
"""

import argparse
import itertools
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCKS = ROOT / "deploy" / "locks"
SHIPPED = ("server-cpu", "server-gpu", "signing", "otel", "training")

ALLOWED = {
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CNRI-Python",
    "ISC",
    "MIT",
    "MIT-0",
    "MIT-CMU",
    "MPL-2.0",
    "PSF-2.0",
    "Unlicense",
    "Zlib",
}
"""Permissive ones, and MPL-2.0, which asks something of those who change its files only."""

SPELLINGS = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
    "ISC License (ISCL)": "ISC",
}
UNDECLARED = {"sigstore-models": "Apache-2.0"}
"""What metadata does not say, and the project's repository does."""

WITH_CUDA = {"onnxruntime-gpu": "MIT", "triton": "MIT"}
"""Of packages that are not installed where there is no GPU."""

NVIDIA = re.compile(r"(cuda|nvidia)-")
"""Packages under NVIDIA's own licence, which lets them be handed on unchanged with a program; with CUDA alone."""

Check = Callable[[], Iterator[str]]
"""Gives a line for each thing that is wrong."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Audits what is installed from others.")
    parser.add_argument("--tools", required=True, metavar="PYTHON", help="which has deploy/locks/audit.txt")
    parser.add_argument("--sbom", required=True, metavar="FOLDER", type=Path, help="where the bills of materials go")
    options = parser.parse_args()
    checks: dict[str, Check] = {
        "names": strangers_names,
        "locks": loose_locks,
        "licences": other_licences,
        "vulnerabilities": lambda: vulnerabilities(options.tools),
        "SBOM": lambda: bills_of_materials(options.tools, options.sbom),
    }
    failed = 0
    for name, check in checks.items():
        lines = list(check())
        failed += bool(lines)
        print(f"audit: {name}: {'; '.join(lines) or 'nothing found'}")
    return min(failed, 1)


def strangers_names() -> Iterator[str]:
    """Names that pip would ask the public index for, and that are not those of packages that we know."""
    known = pinned()
    own = {_toml(folder)["project"]["name"] for folder in (ROOT, ROOT / "client")}
    for folder in (ROOT, ROOT / "client"):
        project = _toml(folder)["project"]
        extras = project.get("optional-dependencies", {})
        # `attendant-seq2seq[training]` within its own extras is what is being installed, not the index's.
        for requirement in [*dependencies_of(folder), *itertools.chain(*extras.values())]:
            name = name_of(requirement)
            if name in own and name != canonicalize_name(project["name"]):
                yield f"{requirement}: our own name, which a stranger may claim on the index"
            elif name not in own and name not in known:
                yield f"{requirement}: not in constraints.txt"


def loose_locks() -> Iterator[str]:
    """Locked packages without a hash or of another version, and what the server needs and no lock has."""
    versions = {name: version for name, (version, _) in locked(LOCKS / "build.txt").items()} | pinned()
    for path in sorted(LOCKS.glob("*.txt")):
        for name, (version, num_hashes) in locked(path).items():
            if not num_hashes:
                yield f"{path.name}: {name} has no hash"
            if path.stem in SHIPPED and versions.get(name) != version:
                yield f"{path.name}: {name} {version}, constraints.txt has {versions.get(name)}: make locks"
    needed = set(map(name_of, dependencies_of(ROOT)))
    for lock, runtime in (("server-cpu", "onnxruntime"), ("server-gpu", "onnxruntime-gpu")):
        for name in sorted((needed | {runtime}) - locked(LOCKS / f"{lock}.txt").keys()):
            yield f"{lock}.txt: {name} is missing: make locks"


def other_licences() -> Iterator[str]:
    """Packages under a licence that is not among those allowed, of all that are installed here."""
    installed = {canonicalize_name(one.metadata["Name"]): one for one in distributions()}
    for name, one in sorted(installed.items()):
        if not NVIDIA.match(name) and not is_allowed(licence := licence_of(one)):
            yield f"{name} {one.version}: {licence or 'says no licence'}"
    for lock in SHIPPED:
        for name in sorted(locked(LOCKS / f"{lock}.txt").keys() - installed.keys() - WITH_CUDA.keys()):
            if not NVIDIA.match(name):
                yield f"{name}: not installed here, so its licence is unknown"


def licence_of(distribution: Distribution) -> str:
    """As an SPDX expression, or as it says it."""
    metadata = distribution.metadata
    if expression := metadata.get("License-Expression"):
        return str(expression)
    prefix = "License :: OSI Approved :: "
    named = [one.removeprefix(prefix) for one in metadata.get_all("Classifier", []) if one.startswith(prefix)]
    said = named or [str(metadata.get("License") or UNDECLARED.get(canonicalize_name(metadata["Name"]), ""))]
    return " AND ".join(SPELLINGS.get(one, one) for one in said)


def is_allowed(expression: str) -> bool:
    """Whether one may choose allowed licences only."""
    parts = expression.replace("(", "").replace(")", "").split(" AND ")
    return all(any(one.strip() in ALLOWED for one in part.split(" OR ")) for part in parts)


def vulnerabilities(python: str) -> Iterator[str]:
    """Known ones of what is shipped; and that they could not be looked up, where that is so."""
    for lock in SHIPPED:
        path = LOCKS / f"{lock}.txt"
        command = [python, "-m", "pip_audit", "--requirement", str(path), "--require-hashes", "--disable-pip"]
        run = _run(*command, "--format", "json", "--progress-spinner", "off")
        try:
            found = json.loads(run.stdout)["dependencies"]
        except (ValueError, KeyError):
            reason = run.stderr.strip().splitlines()[-1:] or ["pip-audit said nothing"]
            yield f"{lock}: NOT CHECKED: {reason[0].strip()[:200]}"
            continue
        # pip-audit ends with status 0 where it has found nothing because it could look nothing up.
        if skipped := [one["name"] for one in found if "skip_reason" in one]:
            share = f"{len(skipped)} of {len(found)} packages"
            yield f"{lock}: NOT CHECKED: {share} could not be looked up, e.g. {skipped[0]}"
        for one in found:
            for fault in one.get("vulns", []):
                fixed = ", ".join(fault["fix_versions"]) or "no version"
                yield f"{lock}: {one['name']} {one['version']}: {fault['id']}, fixed in {fixed}"


def bills_of_materials(python: str, folder: Path) -> Iterator[str]:
    """Writes one per lock, in CycloneDX; a line where it could not be."""
    folder.mkdir(parents=True, exist_ok=True)
    for lock in SHIPPED:
        path, output = LOCKS / f"{lock}.txt", folder / f"{lock}.cdx.json"
        options = "--output-reproducible", "--no-validate", "--output-file", str(output)
        run = _run(python, "-m", "cyclonedx_py", "requirements", str(path), *options)
        listed = len(json.loads(output.read_text())["components"]) if run.returncode == 0 else 0
        if listed != (expected := len(locked(path))):
            yield f"{lock}: {listed} components of {expected}; {run.stderr.strip()[-200:]}"


def _run(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, check=False, capture_output=True, text=True)


def locked(path: Path) -> dict[str, tuple[str, int]]:
    """Package -> its version and how many hashes."""
    found = {}
    for block in re.split(r"\n(?=\S)", path.read_text(encoding="utf-8")):
        if match := re.match(r"([A-Za-z0-9._-]+)==(\S+)", block):
            found[canonicalize_name(match[1])] = match[2], len(re.findall(r"--hash=sha256:[0-9a-f]{64}", block))
    return found


def pinned() -> dict[str, str]:
    """Package -> version, of constraints.txt."""
    return {name: version for name, (version, _) in locked(ROOT / "constraints.txt").items()}


def dependencies_of(folder: Path) -> list[str]:
    """Returns what a distribution always needs; the server's list is in a table of its own, for setup.py."""
    content = _toml(folder)
    table = content["project"] if "dependencies" in content["project"] else content["tool"]["attendant"]
    dependencies: list[str] = table["dependencies"]
    return dependencies


def name_of(requirement: str) -> str:
    return canonicalize_name(Requirement(requirement).name)


def _toml(folder: Path) -> dict[str, Any]:
    with (folder / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)


if __name__ == "__main__":
    sys.exit(main())
