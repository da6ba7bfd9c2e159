"""Splits texts that repeat themselves from one file, or one package, to the next, and checks the splits' counts:
exactly, from the versions that were counted; nearly, from others.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import dataclass

from attendant.runtime.errors import UserError
from attendant.training.data.pairs import Pair


def split_by_key(groups: Iterable[tuple[str, Iterable[Pair]]]) -> dict[str, list[Pair]]:
    """Distinct pairs by split, in order.

    Texts repeat themselves: with pairs drawn at random, the test would ask for what was trained. So each group goes to
    one split as a whole, by its key. A pair that several groups have counts for the first of them. A source of the
    training split leaves the other two splits, in whatever case it is written there.
    """
    splits: dict[str, list[Pair]] = {"train": [], "validation": [], "test": []}
    seen: set[Pair] = set()
    for key, pairs in groups:
        split = splits[split_of(key)]
        for pair in pairs:
            if pair not in seen:
                seen.add(pair)
                split.append(pair)
    trained = {pair.source.casefold() for pair in splits["train"]}
    for name in ("validation", "test"):
        splits[name] = [pair for pair in splits[name] if pair.source.casefold() not in trained]
    return splits


def split_of(key: str) -> str:
    """The split of a group: by the sha1 of its key, as a number, modulo 100: 4 % test, 4 % validate."""
    bucket = int(hashlib.sha1(key.encode(), usedforsecurity=False).hexdigest(), 16) % 100
    return "test" if bucket < 4 else "validation" if bucket < 8 else "train"


TOLERANCE = 0.3
"""How far the counts of other versions may be off before something must have gone wrong, as a share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Counts of splits, for one set of versions.

    Attributes:
        versions: package -> version.
        counts: split -> pairs.
    """

    versions: Mapping[str, str]
    counts: Mapping[str, int]

    def check(
        self, name: str, versions: Mapping[str, str], splits: Mapping[str, Sized], announce: Callable[[str], None]
    ) -> None:
        """Compares what was built with what was expected.

        Args:
            versions: of the packages that were found.
            announce: is told, in a line, that versions differ.

        Raises:
            UserError: other counts from the same versions, or far other counts from other versions.
        """
        counts = {split: len(pairs) for split, pairs in splits.items()}
        if counts == self.counts and versions == self.versions:
            return
        found, wanted = (" / ".join(map(str, numbers.values())) for numbers in (counts, self.counts))
        others = ", ".join(
            f"{package} {version}" for package, version in sorted(versions.items() - self.versions.items())
        )
        if not others:
            raise UserError(f"{name}: {found} pairs, expected {wanted} from these versions: not the same data")
        if any(abs(counts[split] - count) > TOLERANCE * count for split, count in self.counts.items()):
            raise UserError(
                f"{name}: {found} pairs from {others}, expected about {wanted}: this release of the packages is too "
                "different to be read"
            )
        announce(f"{name}: {found} pairs from {others}; figures given elsewhere are for {wanted} pairs")
