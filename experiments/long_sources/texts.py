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

    letters: str
    sounds: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]


def run_together(pairs: Sequence[Pair], num_letters: int, generator: random.Random) -> LongSource:
    """Words drawn at random until there are so many letters; the last one is whole too."""
    letters, sounds, spans = "", list[str](), list[tuple[int, int]]()
    while len(letters) < num_letters:
        pair = generator.choice(pairs)
        said = pair.target.split()
        spans += [(len(letters), len(letters) + len(pair.source))] * len(said)
        letters += pair.source
        sounds += said
    return LongSource(letters, tuple(sounds), tuple(spans))
