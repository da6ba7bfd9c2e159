"""Looks at texts of pairs for what tokenizing does not show: their scripts, and signs that something is wrong."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from attendant.runtime.errors import escaped
from attendant.training.data.pairs import Pair

NUM_SAMPLED: Final = 4096
"""Pairs that are looked at, at even distances."""

RARE_SCRIPT: Final = 0.001
"""Scripts with a smaller share of a side's letters are not listed."""

SCRIPT_NAMES: Final = {"CJK": "Han", "MODIFIER": "", "FULLWIDTH": "Latin", "MATHEMATICAL": "", "FEMININE": "Latin"}
"""By the first word of a character's name, where that is not the script's name."""

SYMBOLS_PER_TEXT: Final = 1.5
SYMBOL_LENGTH: Final = 3.0
MOST_SYMBOLS: Final = 200
"""Lists of symbols have at least, at most, and at most so many different ones: phonemes, for example."""

MOJIBAKE: Final = re.compile("Ã[\x80-\xbf]|Â[\x80-\xbf]|â€|Ð[\x80-\xbf°-¿]Ñ|\ufffd")
MARKUP: Final = re.compile(r"</?[a-zA-Z][^<>]*>|&(?:amp|lt|gt|quot|nbsp|#\d+);")


@dataclass
class EvenSample:
    """Keeps up to NUM_SAMPLED of many pairs, at even distances, without knowing how many will come."""

    pairs: list[Pair] = field(default_factory=list)
    num_seen: int = 0
    _step: int = 1

    def add(self, pair: Pair) -> None:
        if self.num_seen % self._step == 0:
            if len(self.pairs) == NUM_SAMPLED:
                self.pairs = self.pairs[::2]
                self._step *= 2
            if self.num_seen % self._step == 0:
                self.pairs.append(pair)
        self.num_seen += 1


def sample_of(pairs: Iterable[Pair]) -> EvenSample:
    """Returns an even sample of all pairs."""
    sample = EvenSample()
    for pair in pairs:
        sample.add(pair)
    return sample


def script_shares(texts: Iterable[str]) -> dict[str, float]:
    """Returns each script's share of the letters, the largest first; names as Unicode's: Latin, Cyrillic, Han."""
    counts: Counter[str] = Counter()
    for character, count in Counter("".join(texts)).items():
        if unicodedata.category(character).startswith("L"):
            word = unicodedata.name(character, "other").split()[0]
            if name := SCRIPT_NAMES.get(word, word.capitalize()):
                counts[name] += count
    total = counts.total()
    return {name: count / total for name, count in counts.most_common() if count / total >= RARE_SCRIPT}


def are_symbols(texts: Sequence[str]) -> bool:
    """Returns whether texts are lists of symbols, such as phonemes, that white space separates."""
    symbols = [symbol for text in texts for symbol in text.split()]
    return (
        len(symbols) >= SYMBOLS_PER_TEXT * max(1, len(texts))
        and sum(map(len, symbols)) <= SYMBOL_LENGTH * len(symbols)
        and len(set(symbols)) <= MOST_SYMBOLS
    )


def suspicions(pairs: Sequence[Pair]) -> list[str]:
    """Returns a line for each sign that pairs are not what they should be, with its share of the pairs and an example.

    Args:
        pairs: not empty.
    """
    scripts = [next(iter(script_shares(getattr(pair, side) for pair in pairs)), "") for side in ("source", "target")]

    def is_swapped(pair: Pair) -> bool:
        scripts_of_pair = [next(iter(script_shares([text])), "") for text in (pair.source, pair.target)]
        return scripts[0] != scripts[1] and scripts_of_pair == scripts[::-1]

    signs: dict[str, Callable[[Pair], bool]] = {
        "have the same text on both sides": lambda pair: pair.source == pair.target,
        "have source and target in each other's script, as if swapped": is_swapped,
        "have broken characters, as of a wrong encoding": lambda pair: _any(MOJIBAKE, pair),
        "have markup (HTML tags or entities)": lambda pair: _any(MARKUP, pair),
    }
    lines = []
    for words, holds in signs.items():
        matching = [pair for pair in pairs if holds(pair)]
        # A task whose targets are its sources is no accident.
        if matching and len(matching) < len(pairs):
            lines.append(f"{len(matching) / len(pairs):.1%} of the pairs {words}, e.g. {shortened(matching[0])}")
    return lines


def shortened(pair: Pair, width: int = 60) -> str:
    """Returns a pair on one line; control characters, which a terminal would obey, are escaped."""
    texts = (escaped(" ".join(text[: 4 * width].split())) for text in (pair.source, pair.target))
    return " → ".join(text if len(text) <= width else text[: width - 1] + "…" for text in texts)


def _any(pattern: re.Pattern[str], pair: Pair) -> bool:
    return bool(pattern.search(pair.source) or pattern.search(pair.target))
