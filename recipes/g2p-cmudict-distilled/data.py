"""English words and names without pronunciations, for `attendant label`: Debian's largest word list (SCOWL)."""

import re
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from attendant.training.data.fetch import Announce, Apt, Builder

PACKAGE = "wamerican-insane"
WORD_LIST = "usr/share/dict/american-english-insane"
TERMS = f"usr/share/doc/{PACKAGE}/copyright"

WORD = re.compile(r"(?=.{2,24}$)[a-z]+('[a-z]+)?")
"""CMUdict's words have this form, except abbreviations."""


def build(directory: Path, announce: Announce) -> None:
    """Writes words.txt, a word per line, and the list's terms. Raises UserError: no apt, or no network."""
    with tempfile.TemporaryDirectory() as folder:
        apt = Apt(Path(folder))
        apt.download([PACKAGE])
        words = choose((apt.root / WORD_LIST).read_text(encoding="utf-8").splitlines())
        shutil.copyfile(apt.root / TERMS, directory / "LICENSE")
    (directory / "words.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    announce(f"{len(words):,} words")


def choose(words: Iterable[str]) -> list[str]:
    """Returns the words in plain letters, lower-cased, without duplicates and possessives of other words."""
    plain = dict.fromkeys(word for word in map(str.lower, words) if WORD.fullmatch(word))
    return [word for word in plain if word.removesuffix("'s") == word or word.removesuffix("'s") not in plain]


DATA_SETS: dict[str, Builder] = {"english-words": build}
