"""The counts that a fetcher must find: exactly, from the versions that were counted; nearly, from others."""

from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass

from attendant.runtime.errors import UserError

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
            name: of the data set.
            versions: of the packages that were found.
            splits: split -> its pairs.
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
