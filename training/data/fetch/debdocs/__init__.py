"""debdocs: documentation that Debian ships in two languages, LibreOffice's help and the Linux manual pages.

Read out of the packages. The texts keep their own licences; the packages' copyright files are laid beside them.
"""

import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from attendant.training.data.fetch.apt import Apt
from attendant.training.data.fetch.debdocs.libreoffice import help_pages
from attendant.training.data.fetch.debdocs.manpages import manual_pages
from attendant.training.data.fetch.published import Announce, write_splits
from attendant.training.data.fetch.splits import Expected, split_by_key
from attendant.training.data.pairs import Pair, num_words

VERSIONS = {
    "fr": {
        "libreoffice-help-en-us": "4:7.4.7-1+deb12u14",
        "libreoffice-help-fr": "4:7.4.7-1+deb12u14",
        "manpages": "6.03-2",
        "manpages-dev": "6.03-2",
        "manpages-fr": "4.18.1-1",
        "manpages-fr-dev": "4.18.1-1",
    }
}
"""Language -> package -> the version that was counted: Debian 12."""
COUNTS = {
    ("fr", "paragraphs"): {"train": 41_887, "validation": 2_037, "test": 2_171},
    ("fr", "sentences"): {"train": 58_033, "validation": 2_794, "test": 2_968},
    ("fr", "prose"): {"train": 33_342, "validation": 1_565, "test": 1_844},
}
"""Language and unit -> split -> pairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A way of cutting the documentation into pairs.

    Attributes:
        min_words, max_words: words and punctuation marks of a source.
        min_letters: which share of a source's characters is letters and spaces, more than; the rest is formulas,
            tables and signatures.
        endings: how a source ends; empty: anyhow.
        sentences: paragraphs are cut into sentences where both sides have as many of them.
    """

    min_words: int = 3
    max_words: int = 120
    min_letters: float = 0.7
    endings: tuple[str, ...] = ()
    sentences: bool = False

    def pairs(self, paragraphs: Iterable[tuple[str, str]]) -> Iterator[Pair]:
        """The pairs of one file, in order. What reads the same in both languages was not translated, and leaves."""
        for source, target in paragraphs:
            for pair in _sentences(source, target) if self.sentences else [Pair(source, target)]:
                if pair.target and pair.source != pair.target and self._has(pair.source):
                    yield pair

    def _has(self, source: str) -> bool:
        num_letters = sum(character.isalpha() or character.isspace() for character in source)
        return (
            self.min_words <= num_words(source) <= self.max_words
            and num_letters > self.min_letters * len(source)
            and (not self.endings or source.endswith(self.endings))
        )


PARAGRAPHS = Unit()
SENTENCES = Unit(max_words=80, min_letters=0.75, sentences=True)
PROSE = Unit(min_words=5, endings=(".", ":"))
"""Without the labels and titles that make the short paragraphs another kind of text than the long ones."""
UNITS = {"paragraphs": PARAGRAPHS, "sentences": SENTENCES, "prose": PROSE}


def build_debdocs(directory: Path, announce: Announce, *, language: str, unit: str) -> None:
    """Downloads the packages, aligns their pages and writes the three splits.

    Args:
        announce: is told, in a line, if other versions than the counted ones were found.
        language: of the targets, as Debian's packages and directories name it: `fr`.
        unit: what a pair is, of `UNITS`.

    Raises:
        UserError: no apt, no network, or counts that can't be right.
    """
    expected = Expected(versions=VERSIONS[language], counts=COUNTS[language, unit])
    with tempfile.TemporaryDirectory() as folder:
        apt = Apt(Path(folder))
        versions = apt.download(list(expected.versions))
        pages = chain(help_pages(apt.root, language), manual_pages(apt.root, language))
        splits = split_by_key((key, UNITS[unit].pairs(paragraphs)) for key, paragraphs in pages)
        for package in versions:
            shutil.copyfile(apt.root / f"usr/share/doc/{package}/copyright", directory / f"copyright.{package}.txt")
    expected.check(f"debdocs, {unit}, en to {language}", versions, splits, announce)
    write_splits(directory, splits, versions)


SENTENCE_END = re.compile(r"""(?:(?<=[.!?])|(?<=[.!?][)"”»]))\s+(?=["“«(]?\s?[A-ZÀ-Ý0-9])""")


def _sentences(source: str, target: str) -> list[Pair]:
    sources, targets = SENTENCE_END.split(source), SENTENCE_END.split(target)
    if len(sources) != len(targets):
        return [Pair(source, target)]
    return [Pair(*sides) for sides in zip(sources, targets, strict=True)]
