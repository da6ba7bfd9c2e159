"""A toy task: spell the word backwards. Learnable in seconds, and only by attending."""

import random
from itertools import islice
from pathlib import Path

from training.data.fetch.published import Announce, write_pairs
from training.data.pairs import Pair

ALPHABET = "abcdefghij"
COUNTS = {"train": 4000, "validation": 200, "test": 200}
MIN_LENGTH, MAX_LENGTH = 2, 6


def build_reverse(directory: Path, announce: Announce) -> None:
    """Distinct random words over ten letters, source as written, target its letters reversed and spaced."""
    generator = random.Random(20)
    words: dict[str, None] = {}
    while len(words) < sum(COUNTS.values()):
        words["".join(generator.choices(ALPHABET, k=generator.randint(MIN_LENGTH, MAX_LENGTH)))] = None
    remaining = iter(words)
    for part, count in COUNTS.items():
        pairs = [Pair(word, " ".join(reversed(word))) for word in islice(remaining, count)]
        write_pairs(directory / f"{part}.tsv", pairs)
