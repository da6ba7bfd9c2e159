"""Words to phones with stress: CMUdict, and words as people type them.

The dictionary has few of these: initialisms (`bbc`, `b.b.c.`, `at&t`), numbers and words with digits (`covid-19`,
`mp3`), words joined by a hyphen, and names with letters that are spelled (`chatgpt`). They are made from the words of
the training split, the names of the letters and those of the numbers.
"""

import random
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from attendant.training.data.fetch import Announce, Builder
from attendant.training.data.pairs import Pair

# The folders' names are not identifiers.
cmudict: Any = import_module("attendant.recipes.g2p-cmudict.data")
numbers: Any = import_module("attendant.recipes.normalize-numbers-en.words")

COUNTS: Final = {"train": (107_143, 114_929), "validation": (6_303, 6_755), "test": (12_606, 13_480)}
"""split -> distinct words, distinct pronunciations with stress; without the words as people type them."""

SEED: Final = 7
CONSONANTS: Final = "bcdfghjklmnpqrstvwxz"
LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
AMPERSAND: Final = "AE1 N D"


def build(directory: Path, announce: Announce) -> None:
    """Downloads the dictionary, and writes the three splits and the licence.

    Raises:
        UserError: no network, or another dictionary than expected.
    """
    dictionary = cmudict.parse(cmudict.download(directory), stress=True)
    splits = cmudict.split(dictionary)
    for name, words in splits.items():
        cmudict.write_split(directory, name, words, COUNTS)
    with (directory / "train.tsv").open("a", encoding="utf-8", newline="\n") as file:
        for pair in typed(splits["train"], dictionary):
            file.write(f"{pair.source}\t{pair.target}\n")


def typed(words: Mapping[str, Sequence[str]], dictionary: Mapping[str, Sequence[str]]) -> list[Pair]:
    """Returns distinct words as people type them, none of which is in the dictionary; always the same.

    Args:
        words: words of the training split, with their pronunciations.
        dictionary: all words: the names of letters and numbers are read from it, and unusual clusters of consonants
            are recognized.
    """
    typist = Typist(words, dictionary, SEED)
    draws = {typist.initials: 2500, typist.with_number: 2500, typist.hyphened: 2000, typist.with_spelled_ending: 1000}
    return distinct(draws, dictionary)


def distinct(draws: Mapping[Callable[[], Pair], int], known: Container[str]) -> list[Pair]:
    """Calls each function until it has returned that number of sources that are neither known nor returned before."""
    pairs: dict[str, str] = {}
    for draw, number in draws.items():
        num_wanted = len(pairs) + number
        while len(pairs) < num_wanted:
            pair = draw()
            if pair.source not in known:
                pairs.setdefault(pair.source, pair.target)
    return [Pair(source, target) for source, target in pairs.items()]


class Typist:
    """Draws words as people type them, with their pronunciations."""

    def __init__(self, words: Mapping[str, Sequence[str]], dictionary: Mapping[str, Sequence[str]], seed: int) -> None:
        self._random = random.Random(seed)
        self._dictionary = dictionary
        self._words = words
        self._plain = [word for word in words if word.isalpha() and len(word) > 2]
        self._clusters = clusters(dictionary).keys()

    def initials(self) -> Pair:
        """Returns letters that are spelled: consonants alone, or with dots, or with an ampersand."""
        form = self._random.choice(("plain", "dots", "ampersand"))
        if form == "plain":
            letters = self._drawn(CONSONANTS, 2, 5)
            return Pair(letters, self._spelled(letters))
        letters = self._drawn(LETTERS, 2, 4)
        if form == "dots":
            return Pair(".".join(letters) + self._random.choice(("", ".")), self._spelled(letters))
        before, after = letters[:-1], letters[-1]
        return Pair(f"{before}&{after}", f"{self._spelled(before)} {AMPERSAND} {self._spelled(after)}")

    def with_number(self) -> Pair:
        """Returns a number, alone or after a word or letters."""
        number = self._random.randrange(10 ** self._random.choice((1, 2, 2, 2, 3, 4)))
        phones = self._spoken(number_words(number))
        form = self._random.choice(("alone", "word", "letters"))
        if form == "alone":
            return Pair(str(number), phones)
        if form == "word":
            before, spoken = self._word()
        else:
            before = self._drawn(CONSONANTS, 1, 3)
            spoken = self._spelled(before)
        return Pair(f"{before}{self._random.choice(('', '-'))}{number}", f"{spoken} {phones}")

    def hyphened(self) -> Pair:
        """Returns two words with a hyphen between them."""
        (first, first_phones), (second, second_phones) = self._word(), self._word()
        return Pair(f"{first}-{second}", f"{first_phones} {second_phones}")

    def with_spelled_ending(self) -> Pair:
        """Returns a word that ends in letters that no word has side by side, and that are spelled."""
        while True:
            (word, phones), letters = self._word(), self._drawn(CONSONANTS, 2, 3)
            if (word + letters)[-3:] not in self._clusters:
                return Pair(word + letters, f"{phones} {self._spelled(letters)}")

    def _word(self) -> tuple[str, str]:
        word = self._random.choice(self._plain)
        return word, self._words[word][0]

    def _spoken(self, words: Iterable[str]) -> str:
        return " ".join(self._dictionary[word][0] for word in words)

    def _drawn(self, letters: str, least: int, most: int) -> str:
        return "".join(self._random.choices(letters, k=self._random.randint(least, most)))

    def _spelled(self, letters: str) -> str:
        """Returns the names of letters; as in most of CMUdict's initialisms, the last one has the primary stress."""
        names = [self._dictionary[f"{letter}."][0] for letter in letters]
        return " ".join([*(name.replace("1", "2") for name in names[:-1]), names[-1]])


def clusters(words: Iterable[str]) -> Counter[str]:
    """Counts the groups of three adjacent letters in words."""
    return Counter(word[place : place + 3] for word in words for place in range(len(word) - 2))


def number_words(number: int) -> list[str]:
    """Returns the words of a number below 10,000: `1984` as a year is read, `2,005` as a number."""
    is_year = 1100 <= number < 2000 or 2010 <= number < 2100
    words: str = numbers.year(number) if is_year else numbers.cardinal(number)
    return words.replace("-", " ").split()


DATA_SETS: dict[str, Builder] = {"cmudict-stress": build}
