"""Which words of a list are taken; how the command builds them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from attendant.training.data.fetch import english_words
from attendant.training.data.fetch.english_words import PACKAGE, TERMS, WORD_LIST, chosen


def test_plain_words_once_and_no_possessive_beside_its_word() -> None:
    words = [
        "A",
        "Aachen",
        "Aachen's",
        "aachen",
        "o'clock",
        "who's",
        "\u00e9clair",
        "x-ray",
        "B2B",
        "z" * 25,
        "MIT",
        "mitt's",
    ]
    assert chosen(words) == ["aachen", "o'clock", "who's", "mit", "mitt's"]


def test_fetched_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[..., tuple[int, str, str]]
) -> None:
    class Apt:
        """Has the package without a network."""

        def __init__(self, folder: Path) -> None:
            self.root = folder
            for name, text in ((WORD_LIST, "Zoe\nzoo\nzoo's\n"), (TERMS, "free")):
                (folder / name).parent.mkdir(parents=True)
                (folder / name).write_text(text)

        def download(self, packages: list[str]) -> None:
            assert packages == [PACKAGE]

    monkeypatch.setattr(english_words, "Apt", Apt)
    monkeypatch.chdir(tmp_path)
    status, said, _ = command("fetch", "english-words")
    assert status == 0 and "2 words" in said
    assert (tmp_path / "data/english-words/words.txt").read_text() == "zoe\nzoo\n"
    assert (tmp_path / "data/english-words/LICENSE").read_text() == "free"
    status, _, errors = command("fetch", "english-words", "--set", "data.directory=x")
    assert status == 2 and "is for recipes" in errors
