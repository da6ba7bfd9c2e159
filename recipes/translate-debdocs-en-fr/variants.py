"""Makes variants of pairs, as people type texts: in capitals, with placeholders, tags, addresses and names.

Documentation has few of them. A variant is made from a sentence pair of the training split by the same change on both
sides, or from the phrases of phrases.tsv. The same pairs and the same seed give the same variants.
"""

import random
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from attendant.training.data.pairs import Pair

SEED: Final = 41
MAX_WORDS: Final = 20
"""Longest source that is varied, in words and marks: a long one would cost as much training as several short ones."""

COUNTED: Final = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")
"""A word or a mark, as they were counted for the model: with other sentences, all draws would be others."""

KEPT: Final = re.compile(
    r"https?://\S+|\S+@\S+|</?[a-z][^>]*>|\$?\{+[^{}]*\}+|\$[A-Z_]+|%(?:\d\$|\(\w+\))?[a-z@]|(?<!\w)[~.]?/\S+|[A-Z]:\\\S+"
)
"""Parts that a program reads; their letters keep their case."""

WORD: Final = re.compile(r"(?<![^\s(\"“«'])(?:\d|#?\w[\w.+#:/=-]*\w)(?:\(\w*\))?(?=[,.;:!?)\"”»']*(?:\s|$))")

SYLLABLES: Final = (
    "ba", "be", "bi", "bo", "da", "de", "di", "do", "fa", "fi", "ga", "go", "ha", "he", "jo", "ka", "ke", "ki", "ko",
    "la", "le", "li", "lo", "lu", "ma", "me", "mi", "mo", "na", "ne", "ni", "no", "pa", "pe", "po", "ra", "re", "ri",
    "ro", "sa", "se", "si", "so", "ta", "te", "ti", "to", "va", "vi", "wa", "ya", "za", "ch", "sh", "th", "an", "en",
    "in", "on", "el", "ar", "or", "is", "us", "é", "è", "ö", "ü", "ä", "ñ", "ç", "ł", "š", "ž", "ø", "å", "ć", "ğ",
)  # fmt: skip
SCRIPTS: Final = (
    (0x0391, 0x03C9),
    (0x0410, 0x044F),
    (0x05D0, 0x05EA),
    (0x0627, 0x063A),
    (0x3042, 0x3093),
    (0x4E00, 0x6000),
)
EMOJI: Final = ((0x1F600, 0x1F64F), (0x1F300, 0x1F5FF), (0x1F680, 0x1F6C5), (0x2600, 0x26FF), (0x1F900, 0x1F9FF))
TAGS: Final = ("b", "i", "em", "strong", "code", "u", "kbd", "span", "a", "p", "li", "h1", "td", "mark")
FIELDS: Final = (
    "name", "user", "file", "count", "total", "size", "date", "time", "title", "path", "url", "id", "value", "index",
    "page", "user_name", "fileName", "num", "items", "error", "email", "host", "port", "version", "language", "key",
    "code", "product", "price", "first_name", "amount", "n", "message", "label", "folder", "days",
)  # fmt: skip
DOMAINS: Final = (
    "com", "org", "net", "fr", "de", "io", "eu", "co.uk", "info", "dev", "ca", "be",
)  # fmt: skip
ENDINGS: Final = (
    "txt", "pdf", "png", "csv", "odt", "ods", "json", "html", "py", "toml", "conf", "log", "zip", "mp3", "docx",
)  # fmt: skip
FOLDERS: Final = (
    "usr", "etc", "home", "var", "tmp", "opt", "data", "docs", "src", "share", "local", "lib", "Documents",
    "Downloads", "images", "backup",
)  # fmt: skip


class Filler:
    """Draws parts of texts that are the same in every language: names, numbers, placeholders, addresses."""

    def __init__(self, drawn: random.Random) -> None:
        self.random = drawn
        self._kinds = [
            *[self.stand_in] * 4,
            *[self.placeholder] * 4,
            *[self.name] * 4,
            *[self.number] * 2,
            self.url,
            self.email,
            self.path,
            self.date,
            self.identifier,
        ]

    def any(self) -> str:
        return self.random.choice(self._kinds)()

    def stand_in(self) -> str:
        """Returns a number in braces, as a server writes it for a part that must come back unchanged."""
        return f"{{{self.random.randint(1, self.random.choice((3, 9, 20)))}}}"

    def placeholder(self) -> str:
        name = self.random.choice(FIELDS)
        forms = (
            *(f"{{{name}}}",) * 3, f"{{{{{name}}}}}", f"{{{{ {name} }}}}", f"${{{name.upper()}}}", f"${{{name}}}",
            f"${name.upper()}", *("%s", "%d") * 2, f"%{self.random.randint(1, 4)}$s", f"%({name})s", "%i", "%u",
            f"{{{self.random.randint(0, 9)}}}", "{}", f"%{self.random.randint(1, 4)}$d", "%@",
        )  # fmt: skip
        return self.random.choice(forms)

    def word(self) -> str:
        return "".join(self.random.choices(SYLLABLES, k=self.random.randint(2, 4)))

    def plain_word(self) -> str:
        return unicodedata.normalize("NFKD", self.word()).encode("ascii", "ignore").decode() or "x"

    def name(self) -> str:
        """Returns a name: a made-up word, two of them, a product's, or letters of another script."""
        roll = self.random.random()
        if roll < 0.15:
            first, last = self.random.choice(SCRIPTS)
            return "".join(chr(self.random.randint(first, last)) for _ in range(self.random.randint(2, 6)))
        if roll < 0.3:
            return self.plain_word().capitalize() + self.plain_word().upper()[:3]
        if roll < 0.5:
            return f"{self.word().capitalize()} {self.word().capitalize()}"
        return self.word().capitalize()

    def emoji(self) -> str:
        return "".join(
            chr(self.random.randint(*self.random.choice(EMOJI))) for _ in range(self.random.choice((1, 1, 1, 2, 3)))
        )

    def number(self) -> str:
        whole = self.random.randint(2, 10 ** self.random.randint(1, 6))
        return self.random.choice(
            (*(f"{whole}",) * 4, f"{whole}.{self.random.randint(0, 20)}.{self.random.randint(0, 9)}")
        )

    def url(self) -> str:
        parts = [self.plain_word() for _ in range(self.random.randint(0, 2))]
        start = self.random.choice(("https://", "https://www.", "http://"))
        address = "/".join([f"{start}{self.plain_word()}.{self.random.choice(DOMAINS)}", *parts])
        return address + self.random.choice(
            ("", "", "/", f"?id={self.random.randint(1, 999)}", f"#{self.plain_word()}")
        )

    def email(self) -> str:
        user = self.random.choice((self.plain_word(), f"{self.plain_word()}.{self.plain_word()}"))
        return f"{user}@{self.plain_word()}.{self.random.choice(DOMAINS)}"

    def path(self) -> str:
        folders = self.random.sample(FOLDERS, self.random.randint(1, 3))
        file = f"{self.plain_word()}.{self.random.choice(ENDINGS)}"
        windows = "C:\\" + "\\".join([*folders, file])
        return self.random.choice(
            (file, file, "/" + "/".join([*folders, file]), "~/" + "/".join([*folders, file]), windows)
        )

    def date(self) -> str:
        year, month, day = self.random.randint(1950, 2040), self.random.randint(1, 12), self.random.randint(1, 28)
        forms = (f"{year}-{month:02}-{day:02}", f"{day:02}/{month:02}/{year}", str(year), f"{month + 8}:{day + 20}")
        return self.random.choice(forms)

    def identifier(self) -> str:
        word, other = self.random.choice(FIELDS), self.plain_word()
        return self.random.choice((f"--{other}", f"{word}_{other}", f"{other.upper()}_{word.upper()}", f"{other}()"))


def variants(sentences: Sequence[Pair], num_pairs: int, seed: int = SEED) -> Iterator[Pair]:
    """Yields the variants of a training split."""
    drawn = random.Random(seed)
    filler = Filler(drawn)
    # A sentence that is the same on both sides was left untranslated.
    short = [
        pair for pair in sentences if pair.source != pair.target and len(COUNTED.findall(pair.source)) <= MAX_WORDS
    ]
    kinds: dict[Callable[[Pair], Pair | None], float] = {
        capitals: 0.11,
        title: 0.015,
        typed_quickly: 0.03,
        partial(with_slots, filler=filler): 0.12,
        partial(with_tags, filler=filler): 0.05,
        partial(with_affix, filler=filler): 0.05,
    }
    for vary, share in kinds.items():
        num_wanted = round(share * num_pairs)
        for pair in drawn.sample(short, len(short)):
            if not num_wanted:
                break
            variant = vary(pair)
            if variant is not None and variant.source != pair.source:
                num_wanted -= 1
                # Marks and names also occur in capitals.
                yield capitals(variant) if vary is not capitals and drawn.random() < 0.1 else variant
    for _ in range(round(0.03 * num_pairs)):
        first = drawn.randrange(len(short) - 3)
        joined = [pair for pair in short[first : first + drawn.randint(2, 3)] if pair.source.endswith((".", "!", "?"))]
        if len(joined) > 1:
            yield Pair(" ".join(pair.source for pair in joined), " ".join(pair.target for pair in joined))
    yield from _phrases(filler, num_pairs)


def capitals(pair: Pair) -> Pair:
    """Returns both sides in capitals, with their accents, except for KEPT."""
    return Pair(_in_capitals(pair.source), _in_capitals(pair.target))


def _in_capitals(text: str) -> str:
    parts, end = [], 0
    for match in KEPT.finditer(text):
        parts += [text[end : match.start()].upper(), match[0]]
        end = match.end()
    return "".join([*parts, text[end:].upper()])


def title(pair: Pair) -> Pair | None:
    """Returns the pair with a title's capitals in English; French writes a title as it writes a sentence."""
    if not pair.source.endswith(".") or not pair.target.endswith("."):
        return None
    source = re.sub(r"(?<![^\s(])[a-z](?=[a-z]{2})", lambda match: match[0].upper(), pair.source[:-1])
    return Pair(source, pair.target[:-1].rstrip())


def typed_quickly(pair: Pair) -> Pair | None:
    """Returns the pair without a capital at the beginning and without a full stop at the end."""
    if not (pair.source[1:2].islower() and pair.source.endswith(".") and pair.target.endswith(".")):
        return None
    return Pair(pair.source[0].lower() + pair.source[1:-1], pair.target[0].lower() + pair.target[1:-1].rstrip())


def with_slots(pair: Pair, filler: Filler) -> Pair | None:
    """Returns the pair with drawn parts instead of one or two shared words; None if the sides share no word."""
    words = shared_words(pair)
    if not words:
        return None
    for word in filler.random.sample(words, min(len(words), filler.random.choice((1, 1, 2)))):
        pair = _replaced(pair, word, filler.any())
    return pair


def with_tags(pair: Pair, filler: Filler) -> Pair | None:
    """Returns the pair with tags, or numbers in braces, around a shared word or around both texts; or None."""
    words = shared_words(pair)
    begin, end = _tags(filler)
    if words and filler.random.random() < 0.7:
        word = filler.random.choice(words)
        return _replaced(pair, word, f"{begin}{word}{end}")
    return Pair(f"{begin}{pair.source}{end}", f"{begin}{pair.target}{end}") if filler.random.random() < 0.5 else None


def with_affix(pair: Pair, filler: Filler) -> Pair | None:
    """Returns the pair with an emoji, a name or another part before it, after it, or in brackets; or None."""
    part = filler.emoji() if filler.random.random() < 0.5 else filler.any()
    roll = filler.random.random()
    if roll < 0.3:
        return Pair(f"{part} {pair.source}", f"{part} {pair.target}")
    if roll < 0.6:
        return Pair(f"{pair.source} {part}", f"{pair.target} {part}")
    if roll < 0.75:
        return Pair(f"{part}: {pair.source}", f"{part} : {pair.target}")
    if not pair.source.endswith(".") or not pair.target.endswith("."):
        return None
    source, target = pair.source[:-1], pair.target[:-1].rstrip()
    if roll < 0.9:
        return Pair(f"{source} ({part}).", f"{target} ({part}).")
    return Pair(f"{source}: {part}", f"{target} : {part}")


def _tags(filler: Filler) -> tuple[str, str]:
    if filler.random.random() < 0.35:
        first = filler.random.randint(1, 8)
        return f"{{{first}}}", f"{{{first + 1}}}"
    tag = filler.random.choice(TAGS)
    content = f' href="{filler.url()}"' if tag == "a" else f' class="{filler.plain_word()}"' if tag == "span" else ""
    return f"<{tag}{content}>", f"</{tag}>"


def shared_words(pair: Pair) -> list[str]:
    """Returns the words that occur exactly once on both sides: names, numbers, commands, some nouns."""
    sources, targets = WORD.findall(pair.source), WORD.findall(pair.target)
    return [
        word
        for word in sources
        if word in targets
        and (
            not (word.isalpha() and word.islower())
            or re.search(rf"\b(?:the|an?|of|this) {re.escape(word)}", pair.source)
        )
        and pair.source.count(word) == pair.target.count(word) == 1
    ]


def _replaced(pair: Pair, word: str, text: str) -> Pair:
    return Pair(pair.source.replace(word, text), pair.target.replace(word, text))


def phrases() -> list[Pair]:
    """Returns the pairs of phrases.tsv, with parts to fill in; our own words."""
    text = (Path(__file__).parent / "phrases.tsv").read_text(encoding="utf-8")
    return [Pair(*line.split("\t")) for line in text.strip().split("\n")]


def _phrases(filler: Filler, num_pairs: int) -> Iterator[Pair]:
    """Yields the phrases with drawn fillings and without them, some in capitals or typed quickly."""
    pairs = phrases()
    for pair in pairs:
        yield pair if "@" not in pair.source else _filled(pair, filler)
    for _ in range(round(0.07 * num_pairs) - len(pairs)):
        pair = _filled(filler.random.choice(pairs), filler)
        roll = filler.random.random()
        if roll < 0.1:
            pair = capitals(pair)
        elif roll < 0.2:
            pair = typed_quickly(pair) or pair
        elif roll < 0.3:
            pair = with_affix(pair, filler) or pair
        elif roll < 0.35:
            other = _filled(filler.random.choice(pairs), filler)
            pair = Pair(f"{pair.source} {other.source}", f"{pair.target} {other.target}")
        yield pair


def _filled(pair: Pair, filler: Filler) -> Pair:
    """Returns a phrase whose slots (`@name`, `@count`, `@file`, `@date`, `@url`, `@mail`, `@any`) are filled."""
    kinds: dict[str, Sequence[Callable[[], str]]] = {
        "@name": (filler.name, filler.name, filler.placeholder, filler.stand_in),
        "@count": (filler.number, filler.placeholder, filler.stand_in),
        "@file": (filler.path, filler.placeholder, filler.stand_in),
        "@date": (filler.date, filler.placeholder, filler.stand_in),
        "@url": (filler.url, filler.url, filler.stand_in),
        "@mail": (filler.email, filler.email, filler.stand_in),
        "@any": (filler.any,),
    }
    for slot, draws in kinds.items():
        if slot in pair.source:
            pair = _replaced(pair, slot, filler.random.choice(draws)())
    return pair
