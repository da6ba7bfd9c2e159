"""English words and names without pronunciations, for trained models to label: Debian's largest word list (SCOWL)."""

import re
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from attendant.training.data.fetch.apt import Apt
from attendant.training.data.fetch.published import Announce

PACKAGE = "wamerican-insane"
WORD_LIST = f"usr/share/dict/american-english-{PACKAGE.partition('-')[2]}"
TERMS = f"usr/share/doc/{PACKAGE}/copyright"

WORD = re.compile(r"(?=.{2,24}$)[a-z]+('[a-z]+)?")
"""What CMUdict's words are like, but for abbreviations."""


def build_english_words(directory: Path, announce: Announce) -> None:
    """Writes words.txt, a word per line, and the list's terms. Raises UserError: no apt, or no network."""
    with tempfile.TemporaryDirectory() as folder:
        apt = Apt(Path(folder))
        apt.download([PACKAGE])
        words = chosen((apt.root / WORD_LIST).read_text(encoding="utf-8").splitlines())
        shutil.copyfile(apt.root / TERMS, directory / "LICENSE")
    (directory / "words.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    announce(f"{len(words):,} words")


def chosen(words: Iterable[str]) -> list[str]:
    """Those in plain letters, lower-cased, each once, without the possessives of words that are there too."""
    found = dict.fromkeys(word for word in map(str.lower, words) if WORD.fullmatch(word))
    return [word for word in found if word.removesuffix("'s") == word or word.removesuffix("'s") not in found]
