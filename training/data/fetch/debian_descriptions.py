"""Summaries: the descriptions of Debian's packages, the long text to the line above it, the synopsis."""

import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path

from attendant.runtime.errors import UserError
from attendant.training.data.fetch.apt import Apt
from attendant.training.data.fetch.published import Announce, write_splits
from attendant.training.data.fetch.splits import Expected, split_by_key
from attendant.training.data.pairs import Pair, num_words

EXPECTED = Expected(
    versions={"bookworm": "12.15", "architecture": "amd64"},
    counts={"train": 29_231, "validation": 1_277, "test": 1_286},
)
SOURCE_WORDS, TARGET_WORDS = range(12, 151), range(2, 21)
"""Words and punctuation marks that a text and its synopsis may have."""

COMPANIONS = ("-common", "-data", "-dbg", "-dev", "-doc", "-test", "-tests")
"""How the names of packages end that come with another one. Their texts say so, and the rest is the other's."""

SIGNED_RELEASE = re.compile(r"(.*_dists_[^_-]+)_InRelease")
"""What signs the indexes of a release; those of its updates have a hyphen in their suite's name."""


def build_debian_synopses(directory: Path, announce: Announce) -> None:
    """Reads apt's indexes and writes the three splits. Raises UserError: no apt, no network, Debian not among apt's
    sources, or counts that can't be right.
    """
    with tempfile.TemporaryDirectory() as folder:
        apt = Apt(Path(folder))
        prefix, release = _debian_release(apt.lists)
        texts = (Path(f"{prefix}_main_i18n_Translation-en"), Path(f"{prefix}_main_binary-{apt.architecture}_Packages"))
        translations, packages = (path.read_text(encoding="utf-8") for path in texts)
    splits = split_by_key(chosen(descriptions(translations), sources(packages)))
    # What is not released yet has no version.
    version = (release.get("Version") or release["Date"])[0]
    versions = {release["Codename"][0]: version, "architecture": apt.architecture}
    EXPECTED.check("Debian's synopses", versions, splits, announce)
    write_splits(directory, splits, versions)


def stanzas(index: str) -> Iterator[dict[str, list[str]]]:
    """The entries of an index (deb822(5)): field -> its lines, the space before all but the first taken off."""
    for is_empty, lines in groupby(index.split("\n"), key=lambda line: not line):
        if not is_empty:
            fields: dict[str, list[str]] = {}
            values: list[str] = []
            for line in lines:
                if line.startswith(" "):
                    values.append(line[1:])
                else:
                    field, _, value = line.partition(":")
                    values = fields[field] = [value.strip()]
            yield fields


def descriptions(index: str) -> dict[str, Pair]:
    """Package -> text and synopsis. Where a package comes twice, the first counts."""
    found: dict[str, Pair] = {}
    for fields in stanzas(index):
        synopsis, *lines = fields["Description-en"]
        found.setdefault(fields["Package"][0], Pair(prose(lines), " ".join(synopsis.split())))
    return found


def prose(lines: Iterable[str]) -> str:
    """The text of a long description without the paragraphs that hold lists or code, which are indented."""
    paragraphs = [list(group) for is_end, group in groupby(lines, key=lambda line: line == ".") if not is_end]
    flowing = [paragraph for paragraph in paragraphs if not any(line[:1].isspace() for line in paragraph)]
    return " ".join(" ".join(line for paragraph in flowing for line in paragraph).split())


def sources(index: str) -> dict[str, str]:
    """Package -> the source package it is built from."""
    return {fields["Package"][0]: fields.get("Source", fields["Package"])[0].split()[0] for fields in stanzas(index)}


def chosen(pairs: Mapping[str, Pair], source_of: Mapping[str, str]) -> Iterator[tuple[str, list[Pair]]]:
    """Source package -> the pair of one of its packages, if that is of a fitting length.

    The packages of one source share most of their text. The one with the shortest name speaks for them, if it can be
    one that is not a companion of another.

    Args:
        pairs: package -> text and synopsis.
        source_of: package -> source package; one that is not there is taken for its own.
    """
    families: dict[str, list[str]] = {}
    for package in pairs:
        families.setdefault(source_of.get(package, package), []).append(package)
    for source in sorted(families):
        pair = pairs[min(families[source], key=lambda name: (name.endswith(COMPANIONS), len(name), name))]
        if num_words(pair.source) in SOURCE_WORDS and num_words(pair.target) in TARGET_WORDS:
            yield source, [pair]


def _debian_release(lists: Path) -> tuple[str, dict[str, list[str]]]:
    """The path prefix of a Debian release's indexes, up to the component's name, and the fields of its Release file."""
    for path in sorted(lists.iterdir()):
        if match := SIGNED_RELEASE.fullmatch(path.name):
            _, _, signed = path.read_text(encoding="utf-8").partition("\n\n")
            release = next(stanzas(signed))
            if release["Origin"] == ["Debian"] and (lists / f"{match[1]}_main_i18n_Translation-en").exists():
                return str(lists / match[1]), release
    raise UserError("no release of Debian, with its component main, is among apt's sources: build this on Debian")
