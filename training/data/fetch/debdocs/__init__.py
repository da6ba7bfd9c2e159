"""debdocs: documentation that Debian ships in two languages, LibreOffice's help and the Linux manual pages.

Read out of the packages. The texts keep their own licences; the packages' copyright files are laid beside them.
"""

import shutil
import tempfile
from itertools import chain
from pathlib import Path

from attendant.training.data.fetch.apt import Apt
from attendant.training.data.fetch.debdocs.libreoffice import help_pages
from attendant.training.data.fetch.debdocs.manpages import manual_pages
from attendant.training.data.fetch.debdocs.units import PARAGRAPHS, PROSE, SENTENCES
from attendant.training.data.fetch.expected import Expected
from attendant.training.data.fetch.published import Announce, write_pairs, write_versions
from attendant.training.data.fetch.split import split_by_key

UNITS = {"paragraphs": PARAGRAPHS, "sentences": SENTENCES, "prose": PROSE}
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
    write_versions(directory, versions)
    for split, pairs in splits.items():
        write_pairs(directory / f"{split}.tsv", pairs)
