"""Tests of Debian's descriptions: the index's format, the choice of prose, and of one package per source."""

from importlib import import_module
from pathlib import Path

import pytest

from attendant.runtime.errors import UserError
from attendant.training.data.fetch import Expected
from attendant.training.data.pairs import Pair

debian = import_module("attendant.recipes.summarize-debian.data")

LONG = "This toy is a very small program which shows how descriptions of packages are read."
TRANSLATION = f"""Package: toy
Description-md5: 0
Description-en: small  toy
 {LONG}
 It has
 :colons: too.
 .
 It has:
  * a list
 .
 The end.

Package: toy-data
Description-en: small toy (data)
 {LONG}

Package: toy
Description-en: another version
 {LONG}

Package: bell
Description-en: rings
 Too short.
"""
PACKAGES = """Package: toy
Source: toys (1.2)
Version: 1

Package: toy-data
Source: toys

Package: bell
Version: 1
"""


def test_an_index_is_read() -> None:
    assert debian.descriptions(TRANSLATION) == {
        "toy": Pair(f"{LONG} It has :colons: too. The end.", "small toy"),
        "toy-data": Pair(LONG, "small toy (data)"),
        "bell": Pair("Too short.", "rings"),
    }
    assert debian.sources(PACKAGES) == {"toy": "toys", "toy-data": "toys", "bell": "bell"}


def test_paragraphs_with_lists_are_no_prose() -> None:
    assert debian.prose(["One", "two.", ".", "These:", " - three", ".", "", "Four."]) == "One two. Four."
    assert debian.prose([" all indented"]) == ""


@pytest.mark.parametrize(
    ("packages", "chosen"),
    [
        (["toy-utils", "toy-doc", "toys"], "toys"),
        (["toy-doc", "libtoy-perl", "toy-dev"], "libtoy-perl"),
        (["toy-doc", "toy-dev", "toy-common"], "toy-dev"),
    ],
)
def test_one_package_represents_its_source(packages: list[str], chosen: str) -> None:
    pairs = {name: Pair(f"{LONG} {name}", f"the {name}") for name in packages}
    assert list(debian.choose(pairs, dict.fromkeys(packages, "toy"))) == [("toy", [pairs[chosen]])]


def test_a_package_of_unknown_source_is_its_own() -> None:
    pairs = {name: Pair(f"{LONG} {name}", f"the {name}") for name in ("toy-doc", "bell")}
    assert [source for source, _ in debian.choose(pairs, {"bell": "tools"})] == ["tools", "toy-doc"]


@pytest.mark.parametrize(
    ("source", "target", "fits"),
    [
        ("word " * 12, "two words", True),
        ("word " * 11, "two words", False),
        ("word " * 150, "two words", True),
        ("word " * 151, "two words", False),
        ("word " * 12, "one", False),
        ("word " * 12, "word " * 21, False),
    ],
)
def test_pairs_of_unsuitable_lengths_are_left_out(source: str, target: str, fits: bool) -> None:
    assert len(list(debian.choose({"toy": Pair(source.strip(), target.strip())}, {}))) == fits


def test_short_texts_also_occur_in_capitals_and_in_lower_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian, "VARIANTS", {str.upper: 3, str.lower: 1})
    pairs = [Pair(f"Toy {'word ' * 10}{number}", f"The Toy {number}") for number in range(4)]
    too_long = Pair("Toy " + "word " * 50, "The Toy")
    in_capitals, in_lower_case = (
        [Pair(change(pair.source), change(pair.target)) for pair in pairs] for change in (str.upper, str.lower)
    )
    variants = list(debian.variants([*pairs, too_long]))
    assert len(set(variants)) == 4
    assert set(variants[:3]) < set(in_capitals) and variants[3] in in_lower_case
    assert variants == list(debian.variants([*pairs, too_long]))


class FakeApt:
    """A fake that writes indexes to the paths that apt uses."""

    architecture = "amd64"
    release = "Origin: Debian\nVersion: 12.1\nCodename: bookworm\n"
    suites = ("bookworm", "bookworm-updates")

    def __init__(self, folder: Path) -> None:
        self.lists = folder
        for suite in self.suites:
            prefix = f"deb.example_debian_dists_{suite}"
            signed = f"-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\n{self.release}"
            (folder / f"{prefix}_InRelease").write_text(signed)
            (folder / f"{prefix}_main_binary-amd64_Packages").write_text(PACKAGES)
            (folder / f"{prefix}_main_i18n_Translation-en").write_text(TRANSLATION)


def test_builds_the_parts_of_a_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian, "Apt", FakeApt)
    expected = Expected(
        versions={"bookworm": "12.1", "architecture": "amd64"}, counts={"train": 0, "validation": 0, "test": 1}
    )
    monkeypatch.setattr(debian, "EXPECTED", expected)
    lines: list[str] = []
    debian.build(tmp_path, lines.append)
    assert (tmp_path / "test.tsv").read_text() == f"{LONG} It has :colons: too. The end.\tsmall toy\n"
    assert (tmp_path / "train.tsv").read_text() == ""
    assert '"bookworm": "12.1"' in (tmp_path / "versions.json").read_text()
    assert lines == []
    # A release under development has a date instead of a version.
    monkeypatch.setattr(FakeApt, "release", "Origin: Debian\nCodename: forky\nDate: Sat, 11 Jul 2026\n")
    debian.build(tmp_path, lines.append)
    assert len(lines) == 1 and "forky Sat, 11 Jul 2026;" in lines[0]


@pytest.mark.parametrize(
    ("suites", "release"), [(("bookworm-updates",), FakeApt.release), (("bookworm",), "Origin: Other\nCodename: x\n")]
)
def test_sources_without_a_release_of_debian_are_refused(
    suites: tuple[str, ...], release: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OtherApt(FakeApt): ...

    monkeypatch.setattr(OtherApt, "suites", suites)
    monkeypatch.setattr(OtherApt, "release", release)
    monkeypatch.setattr(debian, "Apt", OtherApt)
    with pytest.raises(UserError, match="no release of Debian, with its component main, is among apt's sources"):
        debian.build(tmp_path, print)
