"""Tests of the commit that runs and bundles record: from git, from an archive, from a build, or unknown."""

import runpy
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.paths import ROOT


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Creates a git checkout that contains only the module."""
    folder = tmp_path / "checkout"
    (folder / "runtime").mkdir(parents=True)
    for name in ("runtime/commit.py", "runtime/commit.txt", ".gitattributes"):
        shutil.copy(ROOT / name, folder / name)
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "-c", "user.name=A", "-c", "user.email=a@example.com", "commit", "--quiet", "--message", "first")
    return folder


def git(folder: Path, *arguments: str) -> str:
    run = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return run.stdout.strip()


def commit_of(folder: Path) -> str:
    result: str = runpy.run_path(str(folder / "runtime/commit.py"))["commit"]()
    return result


def test_a_checkout_has_the_commit_of_git_and_marks_changes(checkout: Path) -> None:
    head = git(checkout, "rev-parse", "HEAD")
    assert commit_of(checkout) == head
    (checkout / "untracked.txt").touch()
    assert commit_of(checkout) == head
    with (checkout / "runtime/commit.py").open("a") as file:
        file.write("# changed")
    assert commit_of(checkout) == f"{head}-dirty"


def test_an_archive_has_its_commit(checkout: Path, tmp_path: Path) -> None:
    git(checkout, "archive", "--output", str(tmp_path / "archive.tar"), "HEAD")
    with tarfile.open(tmp_path / "archive.tar") as opened:
        opened.extractall(tmp_path / "archive", filter="data")
    assert commit_of(tmp_path / "archive") == git(checkout, "rev-parse", "HEAD")


def test_without_git_the_commit_recorded_at_the_build_is_used(checkout: Path) -> None:
    head = git(checkout, "rev-parse", "HEAD")
    shutil.rmtree(checkout / ".git")
    assert commit_of(checkout) == "unknown"
    (checkout / "runtime/commit.txt").write_text(f"{head}-dirty\n")
    assert commit_of(checkout) == f"{head}-dirty"


def test_a_repository_around_an_installed_package_is_not_its_own(checkout: Path) -> None:
    installed = checkout / "venv/site-packages/attendant"
    shutil.copytree(checkout / "runtime", installed / "runtime")
    (installed / "runtime/commit.txt").write_text("0123abcd\n")
    assert commit_of(installed) == "0123abcd"


def test_a_checkout_that_git_can_not_read_has_no_known_commit(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert commit_of(checkout) == "unknown"
