"""Tests of publishing: a folder appears completely or not at all."""

from pathlib import Path

import pytest

from attendant.export.published import publish, refuse_occupied
from attendant.runtime.bundle.manifest import MANIFEST_NAME
from attendant.runtime.errors import UserError


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_an_interruption_leaves_no_files(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), publish(tmp_path / "bundle", force=False) as folder:
        (folder / MANIFEST_NAME).write_text("new")
        raise KeyboardInterrupt
    assert names(tmp_path) == []


def test_force_replaces_a_bundle_whole_and_nothing_else(tmp_path: Path) -> None:
    output = tmp_path / "bundle"
    output.mkdir()
    (output / "more").write_text("of the old one")
    for path in (output, output / "more"):
        with pytest.raises(UserError, match=r"has no manifest\.json"):
            refuse_occupied(path, force=True)
    (output / MANIFEST_NAME).write_text("old")
    with publish(output, force=True) as folder:
        (folder / MANIFEST_NAME).write_text("new")
    assert names(tmp_path) == ["bundle"]
    assert names(output) == [MANIFEST_NAME]
    assert (output / MANIFEST_NAME).read_text() == "new"
