"""The units of debdocs (paragraph, sentence, paragraph of prose), and which of their pairs are kept."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from attendant.training.data.pairs import Pair
from attendant.training.data.words import num_words

SENTENCE_END = re.compile(r"""(?:(?<=[.!?])|(?<=[.!?][)"”»]))\s+(?=["“«(]?\s?[A-ZÀ-Ý0-9])""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A way of cutting the documentation into pairs.

    Attributes:
        min_words, max_words: words and punctuation marks of a source.
        min_letters: which share of a source's characters is letters and spaces, more than; the rest is formulas,
            tables and signatures.
        endings: how a source ends; empty: anyhow.
        sentences: paragraphs are cut into sentences where both sides have as many of them.
    """

    min_words: int = 3
    max_words: int = 120
    min_letters: float = 0.7
    endings: tuple[str, ...] = ()
    sentences: bool = False

    def pairs(self, paragraphs: Iterable[tuple[str, str]]) -> Iterator[Pair]:
        """The pairs of one file, in order. What reads the same in both languages was not translated, and leaves."""
        for source, target in paragraphs:
            for pair in _sentences(source, target) if self.sentences else [Pair(source, target)]:
                if pair.target and pair.source != pair.target and self._has(pair.source):
                    yield pair

    def _has(self, source: str) -> bool:
        num_letters = sum(character.isalpha() or character.isspace() for character in source)
        return (
            self.min_words <= num_words(source) <= self.max_words
            and num_letters > self.min_letters * len(source)
            and (not self.endings or source.endswith(self.endings))
        )


PARAGRAPHS = Unit()
SENTENCES = Unit(max_words=80, min_letters=0.75, sentences=True)
PROSE = Unit(min_words=5, endings=(".", ":"))
"""Without the labels and titles that make the short paragraphs another kind of text than the long ones."""


def _sentences(source: str, target: str) -> list[Pair]:
    sources, targets = SENTENCE_END.split(source), SENTENCE_END.split(target)
    if len(sources) != len(targets):
        return [Pair(source, target)]
    return [Pair(*sides) for sides in zip(sources, targets, strict=True)]
