"""The words that were aligned by hand; README.md beside this file says how."""

from dataclasses import dataclass
from pathlib import Path

from attendant_client.alignment import Link

FILE = Path(__file__).parent / "letters-to-sounds.tsv"


@dataclass(frozen=True, slots=True)
class AlignedWord:
    """A word, its sounds, and which letter is linked to which sound, both counted from 0.

    Attributes:
        sure, possible: all that is sure is possible too.
    """

    word: str
    sounds: tuple[str, ...]
    sure: frozenset[Link]
    possible: frozenset[Link]


def read_words(path: Path = FILE) -> list[AlignedWord]:
    return [_word(*line.split("\t")) for line in path.read_text(encoding="utf-8").splitlines()]


def _word(word: str, pieces: str) -> AlignedWord:
    sounds: list[str] = []
    sure, possible = set[Link](), set[Link]()
    first = 0
    for piece in pieces.split(" "):
        letters, _, written = piece.partition("=")
        new = written.split("+") if written else []
        links = {(first + letter, len(sounds) + sound) for letter in range(len(letters)) for sound in range(len(new))}
        possible |= links
        sure |= links if len(letters) == 1 else set()
        first += len(letters)
        sounds += new
    assert word == "".join(piece.partition("=")[0] for piece in pieces.split(" ")), word
    return AlignedWord(word, tuple(sounds), frozenset(sure), frozenset(possible))
