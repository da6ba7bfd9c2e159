"""The split of texts that repeat themselves from one file, or one package, to the next."""

import hashlib
from collections.abc import Iterable

from attendant.training.data.pairs import Pair


def split_by_key(groups: Iterable[tuple[str, Iterable[Pair]]]) -> dict[str, list[Pair]]:
    """Distinct pairs by part, in order.

    With pairs drawn at random, the test would ask for what was trained. So whole groups go to one part, by their key; a
    pair that several groups have counts for the first of them; and a source of the training part, in whatever case,
    leaves the other two.

    Args:
        groups: key -> its pairs.
    """
    parts: dict[str, list[Pair]] = {"train": [], "validation": [], "test": []}
    seen: set[Pair] = set()
    for key, pairs in groups:
        part = parts[part_of(key)]
        for pair in pairs:
            if pair not in seen:
                seen.add(pair)
                part.append(pair)
    trained = {pair.source.casefold() for pair in parts["train"]}
    for name in ("validation", "test"):
        parts[name] = [pair for pair in parts[name] if pair.source.casefold() not in trained]
    return parts


def part_of(key: str) -> str:
    """The part of a group: by the sha1 of its key, as a number, modulo 100: 4 % test, 4 % validate."""
    bucket = int(hashlib.sha1(key.encode(), usedforsecurity=False).hexdigest(), 16) % 100
    return "test" if bucket < 4 else "validation" if bucket < 8 else "train"
