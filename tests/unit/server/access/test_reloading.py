"""Files that change while the server runs."""

import logging
import os
from pathlib import Path

import pytest

from attendant.runtime.errors import UserError
from attendant.server.credentials import Reloaded


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "number"
    path.write_text("1")
    return path


@pytest.fixture
def number(path: Path) -> Reloaded[int]:
    def read() -> int:
        try:
            return int(path.read_text())
        except (OSError, ValueError):
            raise UserError("--number: is none") from None

    return Reloaded([path], read)


def settle(number: Reloaded[int]) -> int:
    """After two looks, as the server takes them."""
    number.look()
    number.look()
    return number.value


def replace(path: Path, text: str) -> None:
    aside = path.with_suffix(".new")
    aside.write_text(text)
    aside.rename(path)


def test_a_change_counts_when_the_file_is_at_rest(path: Path, number: Reloaded[int]) -> None:
    for text in ("2", "23", "234"):
        path.write_text(text)
        number.look()
        assert number.value == 1, "it is still being written"
    number.look()
    assert number.value == 234
    replace(path, "5")
    assert settle(number) == 5


def test_links_are_followed(path: Path, number: Reloaded[int], tmp_path: Path) -> None:
    """As Kubernetes exchanges the files of a secret: the link of a folder is renamed into place."""
    (tmp_path / "elsewhere").write_text("7")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "link").rename(path)
    assert settle(number) == 7


def test_what_can_not_be_used_changes_nothing_and_is_told_once(
    path: Path, number: Reloaded[int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    replace(path, "broken")
    for _ in range(5):
        assert settle(number) == 1
    path.unlink()
    for _ in range(5):
        assert settle(number) == 1
    assert [record.getMessage() for record in caplog.records] == ["not reloaded"] * 2
    replace(path, "3")
    assert settle(number) == 3
    assert caplog.records[-1].getMessage() == "reloaded"


def test_a_file_that_changes_while_it_is_read_is_read_again(path: Path) -> None:
    meddle = True

    def read() -> int:
        found = int(path.read_text())
        if meddle:
            replace(path, str(found + 1))
        return found

    number = Reloaded([path], read)
    first = number.value
    for _ in range(5):
        assert settle(number) == first, "it never was at rest"
    meddle = False
    assert settle(number) == int(path.read_text())


def test_a_file_that_is_touched_is_read_again(path: Path, number: Reloaded[int]) -> None:
    before = path.stat()
    path.write_text("9")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert settle(number) == 9, "same size, same time of modification"
