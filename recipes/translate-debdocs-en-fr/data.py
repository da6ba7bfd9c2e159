r"""debdocs: documentation that Debian ships in English and French, LibreOffice's help and the Linux manual pages.

It is read from the packages. The texts keep their own licences; the packages' copyright files are copied to the data.
The file reads from top to bottom: the choice of pairs, the help's HTML, the manual pages' groff, GNOME's help in XML.
"""

import gzip
import json
import re
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree

from attendant.training.data.fetch import Announce, Apt, Builder, Expected, copy_licences, split_by_key
from attendant.training.data.pairs import Pair, num_words

# The folder's name is not an identifier.
variants = import_module("attendant.recipes.translate-debdocs-en-fr.variants").variants

LANGUAGE = "fr"
VERSIONS = {
    "libreoffice-help-en-us": "4:7.4.7-1+deb12u14",
    "libreoffice-help-fr": "4:7.4.7-1+deb12u14",
    "manpages": "6.03-2",
    "manpages-dev": "6.03-2",
    "manpages-fr": "4.18.1-1",
    "manpages-fr-dev": "4.18.1-1",
}
"""Package -> the version for which pairs were counted: Debian 12."""
MORE_VERSIONS = dict(
    line.split("\t") for line in (Path(__file__).parent / "packages.tsv").read_text("utf-8").splitlines()
)
"""Package -> version, for the packages whose texts are only in the training split of VARIED."""

CHECKS = Path(__file__).parent / "checks.jsonl"
"""Inputs by which translations are checked, and which are therefore not in a training split."""

SENTENCE_END = re.compile(r"""(?:(?<=[.!?])|(?<=[.!?][)"”»]))\s+(?=["“«(]?\s?[A-ZÀ-Ý0-9])""")


Page = tuple[str, list[tuple[str, str]]]
"""The key of a page, and its paragraphs: source and target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A way of cutting the documentation into pairs.

    Attributes:
        counts: split -> number of pairs from VERSIONS.
        min_words, max_words: bounds of a source's number of words and punctuation marks.
        min_letters: a larger share of a source's characters must be letters and spaces; this removes formulas, tables
            and signatures.
        endings: a source must end in one of these; empty: in any way.
        sentences: cuts paragraphs into sentences if both sides have the same number of them.
        varied: the training split also has the documentation in MORE_VERSIONS, and variants of its sentences.
    """

    counts: dict[str, int]
    min_words: int = 3
    max_words: int = 120
    min_letters: float = 0.7
    endings: tuple[str, ...] = ()
    sentences: bool = False
    varied: bool = False

    def pairs(self, paragraphs: Iterable[tuple[str, str]]) -> Iterator[Pair]:
        """Yields a page's pairs in order, without texts that are the same in both languages: they are untranslated."""
        for source, target in paragraphs:
            for pair in _sentences(source, target) if self.sentences else [Pair(source, target)]:
                if pair.target and pair.source != pair.target and self._accepts(pair.source):
                    yield pair

    def _accepts(self, source: str) -> bool:
        num_letters = sum(character.isalpha() or character.isspace() for character in source)
        return (
            self.min_words <= num_words(source) <= self.max_words
            and num_letters > self.min_letters * len(source)
            and (not self.endings or source.endswith(self.endings))
        )


def _sentences(source: str, target: str) -> list[Pair]:
    sources, targets = SENTENCE_END.split(source), SENTENCE_END.split(target)
    if len(sources) != len(targets):
        return [Pair(source, target)]
    return [Pair(*sides) for sides in zip(sources, targets, strict=True)]


PARAGRAPHS = Unit(counts={"train": 41_887, "validation": 2_037, "test": 2_171})
SENTENCES = Unit(
    counts={"train": 58_033, "validation": 2_794, "test": 2_968}, max_words=80, min_letters=0.75, sentences=True
)
PROSE = Unit(counts={"train": 33_342, "validation": 1_565, "test": 1_844}, min_words=5, endings=(".", ":"))
"""Without labels and titles: these are short, and another kind of text than long paragraphs."""
VARIED = replace(PARAGRAPHS, counts=PARAGRAPHS.counts | {"train": 93_199}, varied=True)


def build(directory: Path, announce: Announce, *, unit: Unit) -> None:
    """Downloads the packages, aligns their pages and writes the three splits.

    Raises:
        UserError: no apt, no network, or very different counts.
    """
    versions = VERSIONS | MORE_VERSIONS if unit.varied else VERSIONS
    with tempfile.TemporaryDirectory() as folder:
        apt = Apt(Path(folder))
        downloaded = apt.download(list(VERSIONS))
        pages = dict([*help_pages(apt.root), *manual_pages(apt.root)])
        more_pages: list[Page] = []
        if unit.varied:
            downloaded = apt.download(apt.available(MORE_VERSIONS))
            more_pages = [page for page in (*manual_pages(apt.root), *desktop_pages(apt.root)) if page[0] not in pages]
        copy_licences(apt.root, downloaded, directory)
    splits = split_by_key((key, unit.pairs(paragraphs)) for key, paragraphs in pages.items())
    if unit.varied:
        _vary(splits, [pair for _, paragraphs in more_pages for pair in unit.pairs(paragraphs)])
    Expected(versions=versions, counts=unit.counts).write(directory, splits, downloaded, announce)


def checked_sources() -> set[str]:
    """Returns the sources of CHECKS in lower case."""
    return {json.loads(line)["source"].casefold() for line in CHECKS.read_text("utf-8").splitlines()}


def _vary(splits: dict[str, list[Pair]], more: Iterable[Pair]) -> None:
    """Adds `more` pairs, and variants of sentences, to the training split; sources to be tested on are left out."""
    held_out = {pair.source.casefold() for name in ("validation", "test") for pair in splits[name]}
    held_out |= checked_sources()
    train = list(dict.fromkeys([*splits["train"], *(pair for pair in more if pair.source.casefold() not in held_out)]))
    sentences = [cut for pair in train for cut in _sentences(pair.source, pair.target)]
    varied = dict.fromkeys(variants(sentences, len(splits["train"])))
    splits["train"] = [*train, *(pair for pair in varied if pair.source.casefold() not in held_out)]


DATA_SETS: dict[str, Builder] = {
    "debdocs-en-fr": partial(build, unit=PARAGRAPHS),
    "debdocs-en-fr-prose": partial(build, unit=PROSE),
    "debdocs-en-fr-sentences": partial(build, unit=SENTENCES),
    "debdocs-en-fr-varied": partial(build, unit=VARIED),
}

# LibreOffice's help: the same paragraphs have the same ids in every language.

HELP = Path("usr/share/libreoffice/help")
TEXT_TAGS = {"p", "h1", "h2", "h3", "h4", "h5", "h6"}
ID_PREFIXES = ("par_id", "hd_id", "bm_id")
OTHER_SYSTEMS = {"MAC", "UNIX", "WIN"}
"""Classes of texts for one operating system; the text for all others follows them."""
VOID_TAGS = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}


def help_pages(root: Path) -> Iterator[Page]:
    """Yields the help's pages in order: key (`lo:swriter/main.html`) and pairs of paragraphs."""
    english = root / HELP / "en-US/text"
    for path in sorted(english.rglob("*.html")):
        translation = root / HELP / LANGUAGE / "text" / path.relative_to(english)
        if translation.exists():
            sources, targets = (help_paragraphs(file.read_text(encoding="utf-8")) for file in (path, translation))
            pairs = [(text, targets[key]) for key, text in sources.items() if key in targets]
            yield f"lo:{path.relative_to(english).as_posix()}", pairs


def help_paragraphs(page: str) -> dict[str, str]:
    """Returns id -> text of a page's paragraphs and headings, without code. The first text of an id counts."""
    parser = _HelpParser()
    parser.feed(page)
    parser.close()
    return parser.paragraphs


class _HelpParser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.paragraphs: dict[str, str] = {}
        self._id: str | None = None
        self._text: list[str] = []
        self._skipped: list[bool] = []  # for each open element of the paragraph
        self._num_pre = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        if tag == "pre":
            self._num_pre += 1
        if self._id is not None:
            if tag not in VOID_TAGS:
                self._skipped.append(self._is_skipped or attributes.get("class", "") in OTHER_SYSTEMS)
            elif tag == "br":
                self._text.append(" ")
        elif (
            tag in TEXT_TAGS
            and attributes.get("id", "").startswith(ID_PREFIXES)
            and "code" not in attributes.get("class", "")
            and not self._num_pre
        ):
            self._id = attributes["id"]
            self._text.clear()

    def handle_endtag(self, tag: str) -> None:
        if tag == "pre":
            self._num_pre -= 1
        if self._id is None or tag in VOID_TAGS:
            return
        if self._skipped:
            self._skipped.pop()
        else:
            self.paragraphs.setdefault(self._id, " ".join("".join(self._text).split()))
            self._id = None

    def handle_data(self, data: str) -> None:
        if self._id is not None and not self._is_skipped:
            self._text.append(data)

    @property
    def _is_skipped(self) -> bool:
        return bool(self._skipped) and self._skipped[-1]


# Manual pages. The translations are made by po4a, which puts translated paragraphs into the structure of the original:
# sections and macros come in the same order. If a section's macros agree, its blocks of text correspond one to one. The
# text of a line is what `man` shows, without fonts and sizes. The escapes are those of groff(7): `\fB`, `\s-1` and the
# like leave nothing; `\-`, `\(em` and `\[aq]` are characters.

MANUAL = Path("usr/share/man")
CALL = re.compile(r"[.'][ \t]*([^\s\\]*)[ \t]*(.*)")
HEADINGS = {"SH", "SS"}
PARAGRAPH_MACROS = {"PP", "P", "LP", "sp", "Sp"}  # They begin a block. Their number may differ in a translation.
STRUCTURE = {"TP", "TQ", "IP", "HP", "RS", "RE"}
"""They begin a block, and must agree. IP's argument, a bullet or a number, is left out."""
VERBATIM = {"nf": "fi", "EX": "EE", "TS": "TE", "SY": "YS", "Vb": "Ve", "de": "."}
"""Beginning -> end of examples, tables, synopses and definitions: not prose."""
FONTS = {"B": " ", "I": " ", "R": " ", "SM": " ", "SB": " ", "BI": "", "BR": "", "IB": "", "IR": "", "RB": "", "RI": ""}
"""Macros whose arguments are text -> the arguments' separator."""
LINKS, LINK_ENDS = {"UR", "MT"}, {"UE", "ME"}
"""Around the text of a link; a link without text is shown itself. The argument of the end follows without a space."""

GLYPHS = {
    "aq": "'", "cq": "’", "dq": '"', "fm": "′", "ga": "`", "ha": "^", "lq": "“", "oq": "‘", "rq": "”", "rs": "\\",
    "sh": "#", "ti": "~", "at": "@", "bv": "|", "ba": "|", "or": "|", "sl": "/", "lB": "[", "rB": "]", "Cs": "¤",
    "bu": "•", "co": "©", "rg": "®", "de": "°", "dg": "†", "dd": "‡", "sc": "§", "ps": "¶", "hy": "-", "en": "–",
    "em": "—", "mi": "−", "mu": "×", "di": "÷", "+-": "±", "<=": "≤", ">=": "≥", "!=": "≠", "==": "≡", "->": "→",
    "<-": "←", "ra": "→", "la": "⟨", "is": "∫", "if": "∞", "sr": "√", "12": "½", "14": "¼", "34": "¾", "Eu": "€",
    "Po": "£", "Ye": "¥", "*W": "Ω", "*p": "π", "*m": "μ", "*a": "α", "*b": "β", "*e": "ε", "/o": "ø", "/O": "Ø",
    "ss": "ß", "^o": "ô", ":A": "Ä", ":O": "Ö", ":U": "Ü", ":a": "ä", ":o": "ö", ":u": "ü", "'e": "é", "`e": "è",
}  # fmt: skip
"""The special characters (groff_char(7)) of manual pages."""
SINGLE = {
    "-": "-", " ": " ", "~": " ", "0": " ", "e": "\\", "\\": "\\", "'": "'", "`": "`", ".": ".", "t": " ", "_": "_",
    "(": "(",
}  # fmt: skip
"""Escapes of one character; all others (`\\&`, `\\|`, `\\%`, `\\:`, `\\c`, ...) leave nothing."""
STRINGS = {"lq": "“", "rq": "”", "R": "®", "Tm": "™"}  # The strings that the man macros define (groff_man(7)).
COMMENT = re.compile(r'(?<!\\)\\["#].*')
ESCAPE = re.compile(
    r"""\\(?:
        \[(?P<name>[^\]]*)\]                                # \[em]
      | \((?P<pair>..)                                      # \(em
      | [fFmMnkg](?:\[[^\]]*\]|\(..|[-+]?.)                 # fonts, colours, registers
      | s(?:[-+]?\[[^\]]*\]|[-+]?\([0-9]{2}|[-+]?[0-9])     # sizes
      | \*(?P<string>\[[^\]]*\]|\(..|.)                     # strings
      | [hvwoNDlLxSHb](?P<q>['"]).*?(?P=q)                  # motions and drawings, with an argument in quotes
      | (?P<single>.)
    )""",
    re.VERBOSE,
)
ARGUMENT = re.compile(r'"((?:[^"]|"")*)"?|((?:\\.|[^\s\\])(?:\\.|[^\s\\])*)')


@dataclass(slots=True)
class Section:
    """A section of a manual page.

    Attributes:
        macros: the macros that must agree with the other language, in order.
        blocks: its texts in order; the first is its heading.
    """

    macros: list[str] = field(default_factory=list)
    blocks: list[str] = field(default_factory=list)


def manual_pages(root: Path) -> Iterator[Page]:
    """Yields the manual's pages in order, each once: key (`man:man3/printf.3.gz`) and pairs of blocks."""
    for path in sorted((root / MANUAL).glob("man*/*.gz")):
        translation = root / MANUAL / LANGUAGE / path.relative_to(root / MANUAL)
        if translation.exists() and not path.is_symlink() and not translation.is_symlink():
            pages = (gzip.decompress(file.read_bytes()).decode("utf-8") for file in (path, translation))
            yield f"man:{path.relative_to(root / MANUAL).as_posix()}", list(aligned_blocks(*pages))


def aligned_blocks(english: str, translation: str) -> Iterator[tuple[str, str]]:
    """Yields the corresponding blocks of two pages, without the translation's last section, which names translators."""
    for ours, theirs in zip(sections(english), sections(translation)[:-1], strict=False):
        if ours.macros == theirs.macros and len(ours.blocks) == len(theirs.blocks):
            yield from zip(ours.blocks, theirs.blocks, strict=True)


def sections(page: str) -> list[Section]:
    """Cuts a page at its headings. The lines before the first heading are not text."""
    reader = _ManualReader()
    for line in page.split("\n"):
        reader.read(line)
    reader.end_block()
    return reader.sections


class _ManualReader:
    def __init__(self) -> None:
        self.sections: list[Section] = []
        self._words: list[str] = []
        self._in_heading = False
        self._verbatim_end: str | None = None
        self._link, self._link_start = "", 0

    def read(self, line: str) -> None:
        call = CALL.fullmatch(line)
        if self._verbatim_end is not None:
            if call and call[1] == self._verbatim_end:
                self._verbatim_end = None
        elif call is None:
            self._add(plain(line))
        else:
            self._call(call[1], [plain(argument) for argument in arguments(call[2])])

    def end_block(self) -> None:
        text = " ".join(" ".join(self._words).split())
        if text and self.sections:
            self.sections[-1].blocks.append(text)
        self._words.clear()

    def _call(self, name: str, values: list[str]) -> None:
        if name in HEADINGS:
            self.end_block()
            self.sections.append(Section([name]))
            self._in_heading = True
            if values:
                self._add(" ".join(values))
        elif name in PARAGRAPH_MACROS:
            self.end_block()
        elif name in STRUCTURE or name in VERBATIM:
            self.end_block()
            if self.sections:
                self.sections[-1].macros.append(name)
            self._verbatim_end = VERBATIM.get(name)
        elif name in FONTS:
            self._add(FONTS[name].join(values))
        elif name in LINKS:
            self._link, self._link_start = "".join(values[:1]), len(self._words)
        elif name in LINK_ENDS:
            text = " ".join(self._words[self._link_start :]) or self._link
            self._words[self._link_start :] = [text + "".join(values[:1])]

    def _add(self, text: str) -> None:
        self._words.append(text)
        if self._in_heading:
            # A heading is the macro's arguments, or else the next line.
            self.end_block()
            self._in_heading = False


def plain(text: str) -> str:
    """Returns a text without escapes and comments."""
    return ESCAPE.sub(_replace_escape, COMMENT.sub("", text))


def arguments(text: str) -> list[str]:
    r"""Returns the arguments of a macro call with their escapes: separated by spaces, or in double quotes.

    A space after a backslash doesn't separate. In quotes, two double quotes mean one.
    """
    matches = ARGUMENT.findall(COMMENT.sub("", text).strip())
    return [quoted.replace('""', '"') or bare for quoted, bare in matches]


def _replace_escape(match: re.Match[str]) -> str:
    name = match["name"] if match["name"] is not None else match["pair"]
    if name is not None:
        code = re.fullmatch(r"u([0-9A-F]{4,6})", name)
        return chr(int(code[1], 16)) if code else GLYPHS.get(name, "")
    if match["string"] is not None:
        return STRINGS.get(match["string"].strip("[]("), "")
    return SINGLE.get(match["single"] or "", "")


# GNOME's help: pages of Mallard or DocBook, whose translations have the same elements.

DESKTOP_HELP = Path("usr/share/help")
TEXT_ELEMENTS = {"p", "para", "simpara", "title", "subtitle", "desc", "td", "term", "phrase"}
SKIPPED_ELEMENTS = {"code", "screen", "programlisting", "credit", "license", "legalnotice", "revhistory"}
SEPARATORS = {"guiseq": " > ", "menuchoice": " > ", "keyseq": "+", "keycombo": "+"}
"""Elements that are shown with a separator between their children."""
REFERENCES = {"link", "xref"}  # Without text, they are shown as the title of their target, which is on another page.


def desktop_pages(root: Path) -> Iterator[Page]:
    """Yields the pages in order: key (`help:gedit/gedit-search.page`) and pairs of paragraphs.

    Pages are left out if a document type has to define their entities, or if the translation has other elements.
    """
    english = root / DESKTOP_HELP / "C"
    for path in sorted(english.rglob("*.*")):
        translation = root / DESKTOP_HELP / LANGUAGE / path.relative_to(english)
        if path.suffix in {".page", ".docbook", ".xml"} and path.exists() and translation.exists():
            try:
                sources, targets = (
                    list(_text_blocks(ElementTree.fromstring(file.read_bytes()))) for file in (path, translation)
                )
            except ElementTree.ParseError:
                continue
            if [tag for tag, _ in sources] == [tag for tag, _ in targets]:
                pairs = zip(sources, targets, strict=True)
                yield (
                    f"help:{path.relative_to(english).as_posix()}",
                    [(source, target) for (_, source), (_, target) in pairs if source and target],
                )


def _text_blocks(element: ElementTree.Element) -> Iterator[tuple[str, str]]:
    """Yields tag and text of the elements of text that contain no others; the text is empty if a part is elsewhere."""
    for child in element:
        tag = _tag(child)
        descendants = [each for each in child.iter() if each is not child]
        if tag in TEXT_ELEMENTS and not any(_tag(each) in TEXT_ELEMENTS for each in descendants):
            is_whole = all("".join(each.itertext()).strip() for each in descendants if _tag(each) in REFERENCES)
            yield tag, " ".join(_shown(child).split()) if is_whole else ""
        elif tag not in SKIPPED_ELEMENTS:
            yield from _text_blocks(child)


def _shown(element: ElementTree.Element) -> str:
    if separator := SEPARATORS.get(_tag(element)):
        return separator.join(_shown(child).strip() for child in element)
    return (element.text or "") + "".join(_shown(child) + (child.tail or "") for child in element)


def _tag(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]
