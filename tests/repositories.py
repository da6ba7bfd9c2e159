"""Versions of a tiny model, put into a repository as in a deployment."""

import json
import shutil
from pathlib import Path

from attendant.runtime.bundle.bundle import GOLDEN_NAME, read_manifest
from attendant.runtime.bundle.manifest import MANIFEST_NAME, FileEntry
from attendant.runtime.files import sha256_of


def put_version(bundle: Path, repository: Path, name: str, label: str, *, broken: bool = False) -> str:
    """Puts a copy of a bundle into a repository with one rename; returns the beginning of its digest.

    Args:
        broken: the bundle is complete and signed, but one golden example has a wrong score.
    """
    aside = repository / f".{name}-{label}"  # a model without versions would be logged
    shutil.copytree(bundle, aside)
    manifest = read_manifest(aside)
    provenance = manifest.provenance.model_copy(update={"commit": label})
    files = dict(manifest.files)
    if broken:
        golden = aside / GOLDEN_NAME
        first, *rest = golden.read_text().splitlines(keepends=True)
        golden.write_text(json.dumps(json.loads(first) | {"score": -99.0}) + "\n" + "".join(rest))
        files[GOLDEN_NAME] = FileEntry(size=golden.stat().st_size, sha256=sha256_of(golden))
    signed = manifest.model_copy(update={"name": name, "provenance": provenance, "files": files}).signed()
    (aside / MANIFEST_NAME).write_text(signed.to_text())
    there = repository / name / label
    if there.exists():
        shutil.move(there, repository / name / f".old-{label}")
        shutil.rmtree(repository / name / f".old-{label}", ignore_errors=True)
    there.parent.mkdir(exist_ok=True)
    aside.rename(there)
    return signed.version


def put_policy(repository: Path, name: str, text: str) -> None:
    aside = repository / name / ".serving.toml"
    aside.write_text(text)
    aside.rename(repository / name / "serving.toml")
