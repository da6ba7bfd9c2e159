"""Words over ten letters, made at random, and their letters: as they are (`copy`), or from the last (`reverse`)."""

import random
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from pathlib import Path

from attendant.training.data.fetch import Announce, Builder, write_pairs
from attendant.training.data.pairs import Pair

ALPHABET = "abcdefghij"
NUM_WORDS = {"train": 4000, "validation": 200, "test": 200}


def build(
    directory: Path,
    announce: Announce,
    *,
    spell: Callable[[str], Iterable[str]],
    seed: int,
    min_length: int,
    max_length: int,
) -> None:
    """Writes the three splits. No word occurs twice."""
    generator = random.Random(seed)
    words: dict[str, None] = {}
    while len(words) < sum(NUM_WORDS.values()):
        words["".join(generator.choices(ALPHABET, k=generator.randint(min_length, max_length)))] = None
    remaining = iter(words)
    for split, count in NUM_WORDS.items():
        pairs = [Pair(word, " ".join(spell(word))) for word in islice(remaining, count)]
        write_pairs(directory / f"{split}.tsv", pairs)


DATA_SETS: dict[str, Builder] = {
    "copy": partial(build, spell=iter, seed=21, min_length=4, max_length=12),
    "reverse": partial(build, spell=reversed, seed=20, min_length=2, max_length=6),
}
