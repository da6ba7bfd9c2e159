"""Made-up words, and their letters: as they are (`copy`), or from the last (`reverse`; `backwards`: longer words)."""

import random
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from pathlib import Path
from string import ascii_lowercase

from attendant.training.data.fetch import Announce, Builder, write_pairs
from attendant.training.data.pairs import Pair

ALPHABET = "abcdefghij"
NUM_TRAINED, NUM_HELD_OUT = 4000, 200


def build(
    directory: Path,
    announce: Announce,
    *,
    spell: Callable[[str], Iterable[str]],
    seed: int,
    min_length: int,
    max_length: int,
    alphabet: str = ALPHABET,
    num_trained: int = NUM_TRAINED,
    num_held_out: int = NUM_HELD_OUT,
) -> None:
    """Writes the three splits. No word occurs twice."""
    generator = random.Random(seed)
    words: dict[str, None] = {}
    while len(words) < num_trained + 2 * num_held_out:
        words["".join(generator.choices(alphabet, k=generator.randint(min_length, max_length)))] = None
    remaining = iter(words)
    for split, count in {"train": num_trained, "validation": num_held_out, "test": num_held_out}.items():
        pairs = [Pair(word, " ".join(spell(word))) for word in islice(remaining, count)]
        write_pairs(directory / f"{split}.tsv", pairs)


DATA_SETS: dict[str, Builder] = {
    "copy": partial(build, spell=iter, seed=21, min_length=4, max_length=12),
    "reverse": partial(build, spell=reversed, seed=20, min_length=2, max_length=6),
    "backwards": partial(
        build,
        spell=reversed,
        seed=22,
        min_length=2,
        max_length=20,
        alphabet=ascii_lowercase,
        num_trained=20_000,
        num_held_out=1000,
    ),
}
