"""Tests of publishing, where a folder appears completely or not at all, and of the description of a bundle."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from attendant.export import bundle_writer
from attendant.export.origins import exportable_bundle, with_defaults
from attendant.export.published import describe, publish, refuse_occupied
from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.bundle.manifest import MANIFEST_NAME
from attendant.runtime.bundle_stepper import open_stepper
from attendant.runtime.errors import UserError
from tests.faults.crafting import seal


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
    link = tmp_path / "link"
    link.symlink_to(output)
    for path, state in (
        (output, "has no manifest.json"),
        (output / "more", "has no manifest.json"),
        (link, "is a link"),
        (Path("/proc"), "is a mount point"),
    ):
        with pytest.raises(UserError, match=f"{path} exists and {state}, so --force leaves it: "):
            refuse_occupied(path, force=True)
    link.unlink()
    (output / MANIFEST_NAME).write_text("old")
    with publish(output, force=True) as folder:
        (folder / MANIFEST_NAME).write_text("new")
    assert names(tmp_path) == ["bundle"]
    assert names(output) == [MANIFEST_NAME]
    assert (output / MANIFEST_NAME).read_text() == "new"


def test_a_link_that_leads_to_itself_is_no_place(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    refuse_occupied(tmp_path / "loop" / "bundle", force=False)
    with pytest.raises(UserError, match="loop: can't be written: "), publish(tmp_path / "loop" / "bundle", force=False):
        raise AssertionError("there is no such folder")


def test_a_certificate_without_lengths_and_errors_is_shown(tiny_bundle_path: Path, tmp_path: Path) -> None:
    def empty(content: dict[str, Any]) -> None:
        content["certificates"][0] |= {
            "errors": {},
            "grid": content["certificates"][0]["grid"] | {"source_lengths": []},
        }

    path = Path(shutil.copytree(tiny_bundle_path, tmp_path / "bundle"))
    seal(path, empty)
    lines = [line.split()[0] for line in describe(open_bundle(path)) if line]
    assert "certificate:" in lines and "largest" not in lines


def test_a_patience_of_0_replaces_another(tiny_bundle_path: Path) -> None:
    patient = with_defaults(exportable_bundle(open_bundle(tiny_bundle_path)), patience=2)
    assert patient.decoding.patience == 2.0
    assert with_defaults(patient, patience=0).decoding.patience is None


def test_a_model_without_a_clear_answer_is_named(tiny_bundle_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = open_bundle(tiny_bundle_path)
    monkeypatch.setitem(bundle_writer.MARGIN, "fp32", 1e3)
    with pytest.raises(UserError, match=r"of 1 sources, none keeps its fp32 answer when .*: load trained weights"):
        bundle_writer.choose_golden(bundle, open_stepper(bundle, "fp32"), [[4]])
