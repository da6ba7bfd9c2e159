"""Long sources: words run together, with the sounds of each."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from attendant.training.data.pairs import Pair


@dataclass(frozen=True, slots=True)
class LongSource:
    """Words without anything between them.

    Attributes:
        sounds: of all of them, in their order.
        spans: for each sound the letters [start, end) of its word.
    """

    word: str
    sounds: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]


def run_together(pairs: Sequence[Pair], num_letters: int, generator: random.Random) -> LongSource:
    """Words drawn at random until there are so many letters; the last one is whole too."""
    word, sounds, spans = "", list[str](), list[tuple[int, int]]()
    while len(word) < num_letters:
        pair = generator.choice(pairs)
        said = pair.target.split()
        spans += [(len(word), len(word) + len(pair.source))] * len(said)
        word += pair.source
        sounds += said
    return LongSource(word, tuple(sounds), tuple(spans))
