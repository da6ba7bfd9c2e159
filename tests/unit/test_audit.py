"""The audit finds what it is for: strangers' names, loose locks, other licences, and what could not be looked up."""

import importlib.util
import json
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.paths import ROOT


@pytest.fixture
def audit(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    specification = importlib.util.spec_from_file_location("audit", ROOT / "deploy" / "audit.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_no_name_of_ours_is_looked_up_and_every_lock_holds(audit: ModuleType) -> None:
    assert list(audit.strangers_names()) == []
    assert list(audit.loose_locks()) == []


def test_our_own_names_and_unknown_ones_are_told(
    audit: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "client").mkdir()
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "attendant"\n'
        '[tool.attendant]\ndependencies = ["attendant-client", "numpy>=2", "typo-squat"]\n'
        '[project.optional-dependencies]\ndev = ["attendant[all]"]\n'
    )
    (tmp_path / "client" / "pyproject.toml").write_text('[project]\nname = "attendant-client"\ndependencies = []\n')
    (tmp_path / "constraints.txt").write_text("numpy==2.0\n")
    monkeypatch.setattr(audit, "ROOT", tmp_path)
    assert list(audit.strangers_names()) == [
        "attendant-client: our own name, which a stranger may claim on the index",
        "typo-squat: not in constraints.txt",
    ]


def test_a_lock_without_hashes_or_of_other_versions_is_told(
    audit: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = (ROOT / "deploy" / "locks" / "server-cpu.txt").read_text()
    for lock in ("build", "server-gpu"):
        shutil.copy(ROOT / "deploy" / "locks" / f"{lock}.txt", tmp_path)
    (tmp_path / "server-cpu.txt").write_text(sound.replace("numpy==", "numpy==9") + "grpcio==0.1\n")
    monkeypatch.setattr(audit, "LOCKS", tmp_path)
    lines = "; ".join(audit.loose_locks())
    assert "numpy 9" in lines and "grpcio has no hash" in lines


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("Apache-2.0 OR GPL-3.0-only", True),
        ("MPL-2.0 AND MIT", True),
        ("(Apache-2.0 WITH LLVM-exception) AND MIT", True),
        ("MIT AND AGPL-3.0-only", False),
        ("GNU General Public License v3 (GPLv3)", False),
        ("", False),
    ],
)
def test_licences(audit: ModuleType, expression: str, allowed: bool) -> None:
    assert audit.is_allowed(expression) is allowed


@pytest.mark.parametrize(
    ("says", "lines"),
    [
        ([{"name": "a", "version": "1", "vulns": []}], []),
        ([{"name": "a", "skip_reason": "not found"}], ["1 of 1 packages could not be looked up, e.g. a"]),
        (
            [{"name": "a", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]}],
            ["a 1: CVE-1, fixed in 2"],
        ),
        (None, ["NOT CHECKED: no network"]),
    ],
)
def test_what_could_not_be_looked_up_does_not_pass(
    audit: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: object, lines: list[str]
) -> None:
    """pip-audit ends with status 0 where it found nothing, for whatever reason."""
    program = (
        "raise SystemExit('no network')" if says is None else f"print({json.dumps(json.dumps({'dependencies': says}))})"
    )
    (tmp_path / "pip_audit.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(audit, "SHIPPED", ("server-cpu",))
    found = list(audit.vulnerabilities(sys.executable))
    assert len(found) == len(lines) and all(line in one for line, one in zip(lines, found, strict=True))
