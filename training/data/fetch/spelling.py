"""Toy tasks on made-up words, which need no network and seconds to learn."""

import random
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path

from attendant.training.data.fetch.published import Announce, write_pairs
from attendant.training.data.pairs import Pair

ALPHABET = "abcdefghij"
COUNTS = {"train": 4000, "validation": 200, "test": 200}


def build_copy(directory: Path, announce: Announce) -> None:
    """Words of 4 to 12 letters, spelled as they are: attention has only the diagonal to find; without it, it is a test
    of memory.
    """
    _build(directory, iter, seed=21, min_length=4, max_length=12)


def build_reverse(directory: Path, announce: Announce) -> None:
    """Words of 2 to 6 letters, spelled backwards."""
    _build(directory, reversed, seed=20, min_length=2, max_length=6)


def _build(
    directory: Path, spelled: Callable[[str], Iterable[str]], *, seed: int, min_length: int, max_length: int
) -> None:
    """Distinct random words over ten letters; the target is the letters, spaced."""
    generator = random.Random(seed)
    words: dict[str, None] = {}
    while len(words) < sum(COUNTS.values()):
        words["".join(generator.choices(ALPHABET, k=generator.randint(min_length, max_length)))] = None
    remaining = iter(words)
    for split, count in COUNTS.items():
        pairs = (Pair(word, " ".join(spelled(word))) for word in islice(remaining, count))
        write_pairs(directory / f"{split}.tsv", pairs)
