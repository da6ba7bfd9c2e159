"""A toy task: say the word as it is. Attention has only the diagonal to find; without it, it is a test of memory."""

import random
from itertools import islice
from pathlib import Path

from training.data.fetch.published import Announce, write_pairs
from training.data.pairs import Pair

ALPHABET = "abcdefghij"
COUNTS = {"train": 4000, "validation": 200, "test": 200}
MIN_LENGTH, MAX_LENGTH = 4, 12


def build_copy(directory: Path, announce: Announce) -> None:
    """Distinct random words over ten letters, source as written, target its letters spaced."""
    generator = random.Random(21)
    words: dict[str, None] = {}
    while len(words) < sum(COUNTS.values()):
        words["".join(generator.choices(ALPHABET, k=generator.randint(MIN_LENGTH, MAX_LENGTH)))] = None
    remaining = iter(words)
    for part, count in COUNTS.items():
        write_pairs(directory / f"{part}.tsv", (Pair(word, " ".join(word)) for word in islice(remaining, count)))
