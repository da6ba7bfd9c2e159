"""A folder appears whole or not at all."""

import stat
from pathlib import Path

import pytest

from attendant.export.published import publish, refuse_occupied
from attendant.runtime.bundle.manifest import MANIFEST_NAME
from attendant.runtime.errors import UserError


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def write(folder: Path, text: str) -> None:
    (folder / MANIFEST_NAME).write_text(text)


def test_it_appears_when_all_is_written(tmp_path: Path) -> None:
    output = tmp_path / "deep" / "bundle"
    with publish(output, force=False) as folder:
        write(folder, "new")
        assert not output.exists()
        assert folder.parent == output.parent
    assert names(output.parent) == ["bundle"]
    assert (output / MANIFEST_NAME).read_text() == "new"
    assert stat.S_IMODE(output.stat().st_mode) & 0o500 == 0o500


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failure_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), publish(tmp_path / "bundle", force=False) as folder:
        write(folder, "new")
        raise error
    assert names(tmp_path) == []


def test_a_failure_leaves_the_old_one(tmp_path: Path) -> None:
    output = tmp_path / "bundle"
    output.mkdir()
    write(output, "old")
    with pytest.raises(RuntimeError), publish(output, force=True) as folder:
        write(folder, "new")
        raise RuntimeError
    assert names(tmp_path) == ["bundle"]
    assert (output / MANIFEST_NAME).read_text() == "old"


def test_force_replaces_a_bundle_whole(tmp_path: Path) -> None:
    output = tmp_path / "bundle"
    output.mkdir()
    write(output, "old")
    (output / "more").write_text("of the old one")
    with publish(output, force=True) as folder:
        write(folder, "new")
    assert names(tmp_path) == ["bundle"]
    assert names(output) == [MANIFEST_NAME]
    assert (output / MANIFEST_NAME).read_text() == "new"


def test_what_exists_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    write(tmp_path / "bundle", "old")
    with pytest.raises(UserError, match="exists already: add --force"):
        refuse_occupied(tmp_path / "bundle", force=False)


def test_force_does_not_replace_what_is_no_bundle(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "letters.txt").write_text("dear")
    with pytest.raises(UserError, match=r"has no manifest\.json"):
        refuse_occupied(home, force=True)
    with pytest.raises(UserError, match=r"has no manifest\.json"):
        refuse_occupied(home / "letters.txt", force=True)
    assert names(home) == ["letters.txt"]


def test_a_parent_that_is_no_folder_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(UserError, match="file: can't be written: File exists"),
        publish(tmp_path / "file" / "bundle", force=False),
    ):
        pass
