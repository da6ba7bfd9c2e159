"""More words as people type them, with forms that the training split of `cmudict-stress` lacks.

Letters that are spelled within a word have periods between them (`chat.g.p.t`), as the tokenizer writes them if they
are capitals (`ChatGPT`).
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from attendant.training.data.fetch import Announce, Builder, write_pairs
from attendant.training.data.pairs import Pair

# The folders' names are not identifiers.
cmudict: Any = import_module("attendant.recipes.g2p-cmudict.data")
numbers: Any = import_module("attendant.recipes.normalize-numbers-en.words")
stress: Any = import_module("attendant.recipes.g2p-cmudict-stress.data")

SHARE: Final = {"train": (11, 1), "validation": (12, 20), "test": (13, 10)}
"""split -> the seed, and the number by which the counts of texts are divided."""

LINKS: Final = ("a", "and", "at", "by", "for", "in", "of", "on", "or", "out", "the", "to", "up", "with")
MAX_PHONES: Final = 48  # The recipe's max_target_tokens.
MIN_WORDS: Final = 3  # Three letters that fewer words have side by side are unusual.


def build(directory: Path, announce: Announce) -> None:
    """Downloads the dictionary, and writes three splits, each made from CMUdict's words of that split, and the licence.

    Raises:
        UserError: no network, or another dictionary than expected.
    """
    dictionary = cmudict.parse(cmudict.download(directory), stress=True)
    for name, words in cmudict.split(dictionary).items():
        seed, divisor = SHARE[name]
        typist = Typist(words, dictionary, seed)
        pairs = stress.distinct({draw: number // divisor for draw, number in typist.counts().items()}, dictionary)
        write_pairs(directory / f"{name}.tsv", (pair for pair in pairs if len(pair.target.split()) <= MAX_PHONES))


class Typist(stress.Typist):  # type: ignore[misc]
    """Draws further forms of words as people type them, with their pronunciations."""

    def __init__(self, words: Mapping[str, Sequence[str]], dictionary: Mapping[str, Sequence[str]], seed: int) -> None:
        super().__init__(words, dictionary, seed)
        # With their ends: hardly a word ends in `sb`.
        counts = stress.clusters(f" {word} " for word in dictionary)
        self._usual = {cluster for cluster, number in counts.items() if number >= MIN_WORDS}

    def counts(self) -> Mapping[Any, int]:
        """Returns the forms, each with the number of its texts in the training split."""
        return {
            self.unusual_letters: 3000,
            self.letters_in_word: 4000,
            self.plural_letters: 2000,
            self.letter_and_word: 2000,
            self.number_first: 3000,
            self.number_inside: 2000,
            self.ordinal: 800,
            self.decade: 100,
            self.decimal: 1000,
            self.large_number: 2000,
            self.two_numbers: 1000,
            self.several_words: 2000,
        }

    def unusual_letters(self) -> Pair:
        """Returns letters whose clusters hardly any word has, and that are spelled: `usb`"""
        while True:
            letters = self._drawn(stress.LETTERS, 3, 5)
            if len(stress.clusters([f" {letters} "]).keys() - self._usual) >= len(letters) - 2:
                return Pair(letters, self._spelled(letters))

    def letters_in_word(self) -> Pair:
        """Returns a word with letters that are spelled, before or after it: `chat.g.p.t`, `n.y.times`"""
        (word, phones), letters = self._word(), self._drawn(stress.LETTERS, 2, 4)
        if self._random.random() < 0.25:
            return Pair(f"{'.'.join(letters)}.{word}", f"{self._spelled(letters)} {phones}")
        return Pair(f"{word}.{'.'.join(letters)}", f"{phones} {self._spelled(letters)}")

    def plural_letters(self) -> Pair:
        """Returns spelled letters with an `s`: `dvds`, `dvd's`, `c.e.o.s`"""
        form = self._random.choice(("s", "'s", ".s"))
        letters = self._drawn(stress.CONSONANTS if form == "s" else stress.LETTERS, 2, 4)
        (last, *_), (plural, *_) = self._dictionary[f"{letters[-1]}."], self._dictionary[f"{letters[-1]}'s"]
        phones = f"{self._spelled(letters)}{plural.removeprefix(last)}"
        return Pair(f"{'.'.join(letters) if form == '.s' else letters}{form}", phones)

    def letter_and_word(self) -> Pair:
        """Returns a letter with a hyphen before or after a word or letters: `t-shirt`, `plan-b`, `usb-c`"""
        letter = self._random.choice(stress.LETTERS)
        word, phones = self._word()
        if self._random.random() < 0.6:
            return Pair(f"{letter}-{word}", f"{self._spelled(letter)} {phones}")
        if self._random.random() < 0.3:
            spelled = self.unusual_letters()
            word, phones = spelled.source, spelled.target
        return Pair(f"{word}-{letter}", f"{phones} {self._spelled(letter)}")

    def number_first(self) -> Pair:
        """Returns a number before letters or a word: `3d`, `10am`, `7-eleven`, `50-year`"""
        figures, phones = self._number(self._random.choice((1, 1, 2, 2, 3, 4)))
        if self._random.random() < 0.5:
            word, spoken = self._word()
            return Pair(f"{figures}-{word}", f"{phones} {spoken}")
        letters = self._drawn(stress.LETTERS, 1, 2)
        if letters in ("st", "nd", "rd", "th"):
            return self.number_first()
        return Pair(f"{figures}{letters}", f"{phones} {self._spelled(letters)}")

    def number_inside(self) -> Pair:
        """Returns letters around a number, or two pairs of them: `b2b`, `h2o`, `mp3s`, `r2d2`"""
        figures, phones = self._number(self._random.choice((1, 1, 1, 2)))
        before = self._drawn(stress.LETTERS, 1, 2)
        after = self._drawn(stress.LETTERS, 1, 1)
        spoken = f"{self._spelled(before)} {phones} {self._spelled(after)}"
        if self._random.random() < 0.25:
            more, more_phones = self._number(1)
            return Pair(f"{before}{figures}{after}{more}", f"{spoken} {more_phones}")
        return Pair(f"{before}{figures}{after}", spoken)

    def ordinal(self) -> Pair:
        """Returns an ordinal: `21st`"""
        number = self._random.randrange(1, 10 ** self._random.choice((1, 2, 2, 3, 4)))
        ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (11, 12, 13) else "th"
        return Pair(f"{number}{ending}", self._read(numbers.ordinal(number)))

    def decade(self) -> Pair:
        """Returns a decade: `1980s`, `80s`, `80's`"""
        number = self._random.choice((*range(20, 100, 10), *range(1100, 2000, 10)))
        *before, last = stress.number_words(number)
        plural = f"{last.removesuffix('y')}ies" if last.endswith("y") else f"{last}s"
        ending = self._random.choice(("s", "'s"))
        return Pair(f"{number}{ending}", self._spoken([*before, plural]))

    def decimal(self) -> Pair:
        """Returns a number with decimals: `3.5`"""
        figures = f"{self._random.randrange(100)}.{self._drawn('0123456789', 1, 2)}"
        return Pair(figures, self._read(numbers.amount(figures)))

    def large_number(self) -> Pair:
        """Returns a number from 10,000 to 999,999,999, mostly a round one: `25000`"""
        number = self._random.randrange(100, 1000) * 10 ** self._random.randrange(2, 7)
        number += self._random.randrange(1000) if self._random.random() < 0.3 else 0
        return Pair(str(number), self._read(numbers.cardinal(number)))

    def two_numbers(self) -> Pair:
        """Returns two numbers with a hyphen: `50-50`, `1914-1918`"""
        digits = self._random.choice((1, 2, 2, 4))
        (first, first_phones), (second, second_phones) = self._number(digits), self._number(digits)
        return Pair(f"{first}-{second}", f"{first_phones} {second_phones}")

    def several_words(self) -> Pair:
        """Returns three or four words with hyphens, with short ones between them: `mother-in-law`"""
        links = [self._random.choice(LINKS) for _ in range(self._random.choice((1, 1, 2)))]
        (first, first_phones), (last, last_phones) = self._short_word(), self._short_word()
        return Pair("-".join([first, *links, last]), f"{first_phones} {self._spoken(links)} {last_phones}")

    def _number(self, digits: int) -> tuple[str, str]:
        number = self._random.randrange(10**digits)
        return str(number), self._spoken(stress.number_words(number))

    def _read(self, text: str) -> str:
        """Returns the phones of words that are separated by spaces or hyphens."""
        phones: str = self._spoken(text.replace("-", " ").split())
        return phones

    def _short_word(self) -> tuple[str, str]:
        while True:
            word, phones = self._word()
            if len(word) <= 7:
                return word, phones


DATA_SETS: dict[str, Builder] = {"typed-words": build}
