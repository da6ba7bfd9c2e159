"""Summaries: a Debian package's description, the long text, to its synopsis, the line above it."""

import random
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from attendant.runtime.errors import UserError
from attendant.training.data.fetch import Announce, Apt, Builder, Expected, split_by_key
from attendant.training.data.pairs import Pair, num_words

EXPECTED = Expected(
    versions={"bookworm": "12.15", "architecture": "amd64"},
    counts={"train": 37_231, "validation": 1_277, "test": 1_286},
)
SOURCE_WORDS, TARGET_WORDS = range(12, 151), range(2, 21)
"""Numbers of words and punctuation marks that a text and its synopsis may have."""


def title(text: str) -> str:
    """Returns the text with a capital at the beginning of each word."""
    return " ".join(word[:1].upper() + word[1:] for word in text.split(" "))


VARIANTS = {str.upper: 4_000, str.lower: 2_000, title: 2_000}
"""Changes of both sides of a pair -> how many pairs of the training split have such a variant."""

MAX_VARIED_WORDS = 50  # Longest text that is varied: a long one would cost as much training as several short ones.
COMPANIONS = ("-common", "-data", "-dbg", "-dev", "-doc", "-test", "-tests")
"""Endings of the names of packages that belong to another package. Most of their text is the other's."""

SIGNED_RELEASE = re.compile(r"(.*_dists_[^_-]+)_InRelease")
"""The signed file of a release; the suites of its updates have a hyphen in their names."""


def build(directory: Path, announce: Announce) -> None:
    """Reads apt's indexes and writes the three splits.

    Raises:
        UserError: no apt, no network, no Debian among apt's sources, or very different counts.
    """
    with tempfile.TemporaryDirectory() as folder:
        apt = Apt(Path(folder))
        prefix, release = _debian_release(apt.lists)
        translations = Path(f"{prefix}_main_i18n_Translation-en").read_text(encoding="utf-8")
        packages = Path(f"{prefix}_main_binary-{apt.architecture}_Packages").read_text(encoding="utf-8")
    splits = split_by_key(choose(descriptions(translations), sources(packages)))
    splits["train"] += variants(splits["train"])
    # A release under development has no version yet.
    version = release.get("Version", release.get("Date", ""))
    versions = {release["Codename"]: version, "architecture": apt.architecture}
    EXPECTED.write(directory, splits, versions, announce)


def stanzas(index: str) -> Iterator[dict[str, str]]:
    """Yields the entries of an index (deb822(5)): field -> its lines, continuation lines without their first space."""
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
            yield {field: "\n".join(values) for field, values in fields.items()}


def descriptions(index: str) -> dict[str, Pair]:
    """Returns package -> text and synopsis. The first entry of a package counts."""
    pairs: dict[str, Pair] = {}
    for fields in stanzas(index):
        synopsis, *lines = fields["Description-en"].split("\n")
        pairs.setdefault(fields["Package"], Pair(prose(lines), " ".join(synopsis.split())))
    return pairs


def prose(lines: Iterable[str]) -> str:
    """Returns the text of a long description without paragraphs of lists or code, which are indented."""
    paragraphs = [list(group) for is_end, group in groupby(lines, key=lambda line: line == ".") if not is_end]
    flowing = [paragraph for paragraph in paragraphs if not any(line[:1].isspace() for line in paragraph)]
    return " ".join(" ".join(line for paragraph in flowing for line in paragraph).split())


def sources(index: str) -> dict[str, str]:
    """Returns package -> the source package from which it is built."""
    return {fields["Package"]: fields.get("Source", fields["Package"]).split()[0] for fields in stanzas(index)}


def choose(pairs: Mapping[str, Pair], source_of: Mapping[str, str]) -> Iterator[tuple[str, list[Pair]]]:
    """Yields each source package with the pair of one of its packages, if the pair's lengths are in range.

    The packages of one source share most of their text, so one of them represents it: the package with the shortest
    name that is not a companion of another, if there is one. A package without a source package is its own.
    """
    families: dict[str, list[str]] = {}
    for package in pairs:
        families.setdefault(source_of.get(package, package), []).append(package)
    for source in sorted(families):
        pair = pairs[min(families[source], key=lambda name: (name.endswith(COMPANIONS), len(name), name))]
        if num_words(pair.source) in SOURCE_WORDS and num_words(pair.target) in TARGET_WORDS:
            yield source, [pair]


def variants(pairs: Sequence[Pair], seed: int = 1) -> Iterator[Pair]:
    """Yields pairs in capitals, in lower case, and with a capital at each word, which descriptions are not."""
    drawn = random.Random(seed)
    short = [pair for pair in pairs if num_words(pair.source) <= MAX_VARIED_WORDS]
    for change, num_pairs in VARIANTS.items():
        for pair in drawn.sample(short, min(num_pairs, len(short))):
            yield Pair(change(pair.source), change(pair.target))


def _debian_release(lists: Path) -> tuple[str, dict[str, str]]:
    """Returns the path of a Debian release's indexes up to the component's name, and the fields of its Release file."""
    for path in sorted(lists.iterdir()):
        if match := SIGNED_RELEASE.fullmatch(path.name):
            _, _, signed = path.read_text(encoding="utf-8").partition("\n\n")
            release = next(stanzas(signed))
            if release["Origin"] == "Debian" and (lists / f"{match[1]}_main_i18n_Translation-en").exists():
                return str(lists / match[1]), release
    raise UserError("no release of Debian, with its component main, is among apt's sources: build this on Debian")


DATA_SETS: dict[str, Builder] = {"debian-synopses": build}
