"""Tests of messages-en-fr: catalogues, the choice of plain language, the splits, and the whole build."""

import struct
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

import pytest

from attendant.training.data.pairs import Pair

messages = import_module("attendant.recipes.translate-messages-en-fr.data")

HEADER = {"": "Content-Type: text/plain; charset=UTF-8\n"}


def compiled(texts: Mapping[str, str], order: str = "<") -> bytes:
    """Returns a catalogue as msgfmt writes it: the tables of both sides, then the texts."""
    sides = [[text.encode() for text in side] for side in zip(*sorted((HEADER | texts).items()), strict=True)]
    number = len(sides[0])
    head = struct.pack(f"{order}7I", 0x950412DE, 0, number, 28, 28 + 8 * number, 0, 0)
    table, content, offset = b"", b"", 28 + 16 * number
    for text in [text for side in sides for text in side]:
        table += struct.pack(f"{order}2I", len(text), offset + len(content))
        content += text + b"\0"
    return head + table + content


@pytest.mark.parametrize("order", ["<", ">"])
def test_a_catalogue_has_messages_without_contexts_and_both_numbers(order: str) -> None:
    texts = {
        "menu\x04Open": "Ouvrir",
        "one file\0%d files": "un fichier\0%d fichiers",
        "the\0many": "le",
        "Été": "Summer",
    }
    assert sorted(messages.catalogue(compiled(texts, order))) == [
        ("%d files", "%d fichiers"),
        ("Open", "Ouvrir"),
        ("many", "le"),
        ("one file", "un fichier"),
        ("the", "le"),
        ("Été", "Summer"),
    ]


@pytest.mark.parametrize(
    ("english", "french", "pairs"),
    [
        ("&File", "&Fichier", [("File", "Fichier")]),
        ("Save _as", "Enregistrer _sous", [("Save as", "Enregistrer sous")]),
        ("One.\nTwo.\n", "Un.\n\n Deux.", [("One.", "Un."), ("Two.", "Deux.")]),
        ("One\nline", "Une ligne", [("One line", "Une ligne")]),
        ("tabs\t and\u00a0 blanks", "des blancs", [("tabs and blanks", "des blancs")]),
        ("%s is open", "%s est ouvert", []),
        ("a <b>tag</b>", "une <b>balise</b>", []),
        ("a b", "{0}", []),
        ("war_ning_s", "avertissements", []),
        ("see config.yaml", "voir config.yaml", []),
        ("in 1999", "en 1999", []),
    ],
)
def test_lines_of_plain_language_are_kept_without_the_marks_of_keys(
    english: str, french: str, pairs: Sequence[tuple[str, str]]
) -> None:
    assert list(messages.lines(english, french)) == pairs


def test_a_source_is_in_one_split_once() -> None:
    train, validation, test = Pair("A", "a"), Pair("B", "b"), Pair("C", "c")
    checked = Pair("Select a cell and press the Enter key.", "of checks.jsonl")
    splits = messages.split(
        [
            ("game", [train, Pair("a", "again"), checked]),
            ("wesnoth-dm", [Pair("A", "x"), validation]),
            ("wesnoth-tsg", [Pair("a", "y"), Pair("b", "z"), test]),
        ]
    )
    assert splits == {"train": [train], "validation": [validation], "test": [test]}


class FakeApt:
    """A fake that writes a small catalogue of a package."""

    def __init__(self, folder: Path) -> None:
        self.root = folder

    def available(self, packages: Sequence[str]) -> list[str]:
        return list(packages)

    def download(self, packages: Sequence[str]) -> dict[str, str]:
        for package in packages:
            path = self.root / f"usr/share/doc/{package}/copyright"
            path.parent.mkdir(parents=True)
            path.write_text(f"of {package}", encoding="utf-8")
        for place, (name, texts) in enumerate(
            {
                "game": {"Who are you? Go away!": "Qui es-tu? Va-t-en !", "same": "same"},
                "wesnoth-dw": {"Go away!": "Pars!", "A fish": "Un poisson"},
            }.items()
        ):
            path = self.root / f"usr/share/{place}/fr/LC_MESSAGES/{name}.mo"
            path.parent.mkdir(parents=True)
            path.write_bytes(compiled(texts))
        return dict.fromkeys(packages, "1")


def test_builds_from_the_catalogues_of_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "Apt", FakeApt)
    monkeypatch.setattr(messages, "VERSIONS", {"game": "1"})
    monkeypatch.setattr(messages, "COUNTS", {"train": 2, "validation": 0, "test": 1})
    lines: list[str] = []
    messages.build(tmp_path, lines.append)
    contents = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    del contents["versions.json"]
    assert contents == {
        "train.tsv": "Who are you?\tQui es-tu ?\nGo away!\tVa-t-en !\n",
        "validation.tsv": "",
        "test.tsv": "A fish\tUn poisson\n",
        "copyright.game.txt": "of game",
    }
    assert lines == []
