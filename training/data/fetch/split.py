"""Splits texts that repeat themselves from one file, or one package, to the next."""

import hashlib
from collections.abc import Iterable

from attendant.training.data.pairs import Pair


def split_by_key(groups: Iterable[tuple[str, Iterable[Pair]]]) -> dict[str, list[Pair]]:
    """Distinct pairs by split, in order.

    Texts repeat themselves: with pairs drawn at random, the test would ask for what was trained. So each group goes to
    one split as a whole, by its key. A pair that several groups have counts for the first of them. A source of the
    training split leaves the other two splits, in whatever case it is written there.

    Args:
        groups: key -> its pairs.
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
