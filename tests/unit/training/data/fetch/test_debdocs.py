"""debdocs, built from a small copy of the packages' layout; and, slowly, from the packages themselves."""

import gzip
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from attendant.runtime.errors import UserError
from attendant.training.data.config import CorpusFiles
from attendant.training.data.fetch import FETCHERS, debdocs
from attendant.training.data.fetch.debdocs import COUNTS, VERSIONS, build_debdocs
from attendant.training.data.fetch.published import publish
from attendant.training.data.pairs import Pair, read_pairs

ENGLISH_HELP = '<p id="par_id1">Saves the file. Closes it.</p><p id="par_id2">Prints the open file.</p>'
FRENCH_HELP = '<p id="par_id1">Enregistre le fichier. Le ferme.</p><p id="par_id2">Imprime le fichier ouvert.</p>'
ENGLISH_PAGE = ".SH NAME\nsaves the open file\n"
FRENCH_PAGE = ".SH NOM\nenregistre le fichier ouvert\n.SH TRADUCTION\nDe quelqu'un.\n"


class FakeApt:
    def __init__(self, folder: Path) -> None:
        self.root = folder

    def download(self, packages: Sequence[str]) -> dict[str, str]:
        for package in packages:
            self._write(f"usr/share/doc/{package}/copyright", f"of {package}".encode())
        self._write("usr/share/libreoffice/help/en-US/text/shared/a.html", ENGLISH_HELP.encode())
        self._write("usr/share/libreoffice/help/fr/text/shared/a.html", FRENCH_HELP.encode())
        self._write("usr/share/man/man1/a.1.gz", gzip.compress(ENGLISH_PAGE.encode()))
        self._write("usr/share/man/fr/man1/a.1.gz", gzip.compress(FRENCH_PAGE.encode()))
        return dict.fromkeys(packages, "1") | {"manpages": "2"}

    def _write(self, name: str, content: bytes) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_bytes(content)


@pytest.fixture
def expect(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, str], None]:
    def expect(num_pairs: int, version: str) -> None:
        monkeypatch.setattr(debdocs, "Apt", FakeApt)
        versions = dict.fromkeys(VERSIONS["fr"], "1") | {"manpages": version}
        monkeypatch.setitem(VERSIONS, "fr", versions)
        for unit in debdocs.UNITS:
            monkeypatch.setitem(COUNTS, ("fr", unit), {"train": num_pairs, "validation": 0, "test": 0})

    return expect


@pytest.mark.parametrize(
    ("unit", "pairs"),
    [
        (
            "paragraphs",
            [
                Pair("Saves the file. Closes it.", "Enregistre le fichier. Le ferme."),
                Pair("Prints the open file.", "Imprime le fichier ouvert."),
                Pair("saves the open file", "enregistre le fichier ouvert"),
            ],
        ),
        (
            "sentences",
            [
                Pair("Saves the file.", "Enregistre le fichier."),
                Pair("Closes it.", "Le ferme."),
                Pair("Prints the open file.", "Imprime le fichier ouvert."),
                Pair("saves the open file", "enregistre le fichier ouvert"),
            ],
        ),
        (
            "prose",
            [
                Pair("Saves the file. Closes it.", "Enregistre le fichier. Le ferme."),
                Pair("Prints the open file.", "Imprime le fichier ouvert."),
            ],
        ),
    ],
)
def test_builds_from_both_kinds_of_documentation(
    unit: str, pairs: list[Pair], expect: Callable[[int, str], None], tmp_path: Path
) -> None:
    expect(len(pairs), "2")
    said: list[str] = []
    build_debdocs(tmp_path, said.append, language="fr", unit=unit)
    assert list(read_pairs(CorpusFiles(tsv=str(tmp_path / "train.tsv")))) == pairs
    assert (tmp_path / "test.tsv").read_text() == ""
    assert (tmp_path / "copyright.manpages-fr.txt").read_text() == "of manpages-fr"
    assert '"manpages": "2"' in (tmp_path / "versions.json").read_text()
    assert said == []


def test_other_versions_are_told(expect: Callable[[int, str], None], tmp_path: Path) -> None:
    expect(3, "1")
    said: list[str] = []
    build_debdocs(tmp_path, said.append, language="fr", unit="paragraphs")
    assert said == [
        "debdocs, paragraphs, en to fr: 3 / 0 / 0 pairs from manpages 2; "
        "figures given elsewhere are for 3 / 0 / 0 pairs"
    ]


def test_other_counts_of_the_same_versions_are_refused(expect: Callable[[int, str], None], tmp_path: Path) -> None:
    expect(4, "2")
    with pytest.raises(UserError, match=r"3 / 0 / 0 pairs, expected 4 / 0 / 0 from these versions"):
        build_debdocs(tmp_path, print, language="fr", unit="paragraphs")
    assert not list(tmp_path.glob("*.tsv"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["debdocs-en-fr", "debdocs-en-fr-sentences", "debdocs-en-fr-prose", "debian-synopses"])
def test_from_the_archive(name: str, tmp_path: Path) -> None:
    """The builders check their counts; here it is seen that they find all that they need."""
    publish(tmp_path / name, name, FETCHERS[name], announce=print)
    for part in ("train", "validation", "test"):
        assert sum(1 for _ in read_pairs(CorpusFiles(tsv=str(tmp_path / name / f"{part}.tsv")))) > 1000
