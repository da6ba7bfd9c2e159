"""messages-en-fr: messages of programs, dialogues and stories of games, in English and French, as Debian ships them.

They are read from the programs' catalogues (GNU gettext's .mo files). The texts keep their own licences; the packages'
copyright files are copied to the data.
"""

import re
import struct
import tempfile
from collections.abc import Iterable, Iterator
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Final

from attendant.training.data.fetch import Announce, Apt, Builder, Expected, copy_licences
from attendant.training.data.pairs import Pair

# The folder's name is not an identifier.
documentation = import_module("attendant.recipes.translate-debdocs-en-fr.data")

VERSIONS: Final = dict(
    line.split("\t") for line in (Path(__file__).parent / "packages.tsv").read_text("utf-8").splitlines()
)
"""Package -> the version for which pairs were counted: Debian 12."""
COUNTS: Final = {"train": 125_768, "validation": 2_525, "test": 3_008}

HELD_OUT: Final = {
    "wesnoth-dm": "validation", "wesnoth-sof": "validation", "nautilus": "validation", "korganizer": "validation",
    "wesnoth-tsg": "test", "wesnoth-dw": "test", "gnome-software": "test", "shotwell": "test",
}  # fmt: skip
"""Catalogue -> split. All others are in the training split."""

UNIT: Final = documentation.Unit(counts=COUNTS, min_words=1, max_words=60, min_letters=0.75, sentences=True)
"""Sentences, if both sides have the same number of them."""

LITTLE_ENDIAN: Final = bytes.fromhex("de120495")
CONTEXT_END: Final = "\x04"
ACCELERATOR: Final = re.compile(r"[&_~](?=\w)")  # Marks the letter of a label's key.
SPECIAL: Final = re.compile(r"[%<>{}\[\]|\\^*=_~@#$/&+]|\w[.:]\w|\d{4}")
"""Placeholders, markup and other parts that are not plain language."""
LATE_MARK: Final = re.compile(r"(?<=[\w)\"»])\s*([!?;:])(?=\s|$)")
"""French has a blank before these marks; translators forget it."""


def build(directory: Path, announce: Announce) -> None:
    """Downloads the packages, reads their catalogues and writes the three splits.

    Raises:
        UserError: no apt, no network, or very different counts.
    """
    with tempfile.TemporaryDirectory() as folder:
        apt = Apt(Path(folder))
        downloaded = apt.download(apt.available(VERSIONS))
        splits = split(catalogues(apt.root))
        copy_licences(apt.root, downloaded, directory)
    Expected(versions=VERSIONS, counts=COUNTS).write(directory, splits, downloaded, announce)


DATA_SETS: dict[str, Builder] = {"messages-en-fr": build}


def split(catalogues: Iterable[tuple[str, list[Pair]]]) -> dict[str, list[Pair]]:
    """Returns the pairs by split. No source occurs twice in them, compared without case."""
    sides: dict[str, dict[str, Pair]] = {"train": {}, "validation": {}, "test": {}}
    for name, pairs in catalogues:
        for pair in pairs:
            sides[HELD_OUT.get(name, "train")].setdefault(pair.source.casefold(), pair)
    train, validation = sides["train"], sides["validation"]
    others = {"train": documentation.checked_sources(), "validation": train, "test": train | validation}
    return {name: [pair for key, pair in pairs.items() if key not in others[name]] for name, pairs in sides.items()}


def catalogues(root: Path) -> Iterator[tuple[str, list[Pair]]]:
    """Yields the French catalogues in order: name and pairs."""
    for path in sorted((root / "usr").rglob("fr/LC_MESSAGES/*.mo")):
        messages = chain.from_iterable(lines(*sides) for sides in catalogue(path.read_bytes()))
        yield path.stem, list(UNIT.pairs((english, LATE_MARK.sub(r" \1", french)) for english, french in messages))


def catalogue(content: bytes) -> Iterator[tuple[str, str]]:
    """Yields the messages of a .mo file and their translations, without contexts; each number of a plural by itself."""
    order = "<" if content.startswith(LITTLE_ENDIAN) else ">"
    number, *tables = struct.unpack_from(f"{order}3I", content, 8)
    for place in range(1, number):  # the first message is the header
        english, french = (
            content[offset : offset + length].decode("utf-8").split("\0")
            for length, offset in (struct.unpack_from(f"{order}2I", content, table + 8 * place) for table in tables)
        )
        english[0] = english[0].rpartition(CONTEXT_END)[2]
        yield english[0], french[0]
        if len(english) > 1:
            yield english[1], french[-1]


def lines(english: str, french: str) -> Iterator[tuple[str, str]]:
    """Yields the pairs of lines of a message, without accelerators. Messages that are not plain language are left out.

    If the two sides have different numbers of lines, each side becomes one line.
    """
    sides = [ACCELERATOR.sub("", side) if len(ACCELERATOR.findall(side)) == 1 else side for side in (english, french)]
    if any(SPECIAL.search(side) for side in sides):
        return
    rows = [[" ".join(line.split()) for line in side.splitlines() if line.strip()] for side in sides]
    if len(rows[0]) == len(rows[1]):
        yield from zip(*rows, strict=True)
    else:
        yield " ".join(rows[0]), " ".join(rows[1])
