r"""Manual pages, English beside a translation.

The translations are made by po4a, which puts translated paragraphs into the structure of the original: sections and
macros come in the same order. A section whose macros agree gives its blocks of text one to one.

The text of a line is what `man` would show, without fonts and sizes. The escapes are those of groff(7): `\fB`, `\s-1`
and the like leave nothing; `\-`, `\(em` and `\[aq]` are characters.
"""

import gzip
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

HEADINGS = {"SH", "SS"}
PARAGRAPHS = {"PP", "P", "LP", "sp", "Sp"}
"""Begin a block, and say no more: a translation may have one more or fewer."""
STRUCTURE = {"TP", "TQ", "IP", "HP", "RS", "RE"}
"""Begin a block, and have to agree. The bullet or number that IP has as its argument is left out."""
VERBATIM = {"nf": "fi", "EX": "EE", "TS": "TE", "SY": "YS", "Vb": "Ve", "de": "."}
"""What begins examples, tables, synopses and definitions -> what ends them. They are not prose."""
FONTS = {"B", "I", "R", "SM", "SB"}
"""Their arguments are text, with spaces between them."""
ALTERNATING_FONTS = {"BI", "BR", "IB", "IR", "RB", "RI"}
"""Their arguments are text, with nothing between them."""
LINKS = {"UR", "MT"}
LINK_ENDS = {"UE", "ME"}
"""Around the text of a link, which stands for itself where there is none; the end's argument closes up to it."""

CALL = re.compile(r"[.'][ \t]*([^\s\\]*)[ \t]*(.*)")
MANUAL = Path("usr/share/man")

GLYPHS = {
    "aq": "'", "cq": "’", "dq": '"', "fm": "′", "ga": "`", "ha": "^", "lq": "“", "oq": "‘", "rq": "”", "rs": "\\",
    "sh": "#", "ti": "~", "at": "@", "bv": "|", "ba": "|", "or": "|", "sl": "/", "lB": "[", "rB": "]", "Cs": "¤",
    "bu": "•", "co": "©", "rg": "®", "de": "°", "dg": "†", "dd": "‡", "sc": "§", "ps": "¶", "hy": "-", "en": "–",
    "em": "—", "mi": "−", "mu": "×", "di": "÷", "+-": "±", "<=": "≤", ">=": "≥", "!=": "≠", "==": "≡", "->": "→",
    "<-": "←", "ra": "→", "la": "⟨", "is": "∫", "if": "∞", "sr": "√", "12": "½", "14": "¼", "34": "¾", "Eu": "€",
    "Po": "£", "Ye": "¥", "*W": "Ω", "*p": "π", "*m": "μ", "*a": "α", "*b": "β", "*e": "ε", "/o": "ø", "/O": "Ø",
    "ss": "ß", "^o": "ô", ":A": "Ä", ":O": "Ö", ":U": "Ü", ":a": "ä", ":o": "ö", ":u": "ü", "'e": "é", "`e": "è",
}  # fmt: skip
"""Names of special characters (groff_char(7)) as they occur in manual pages."""
SINGLE = {
    "-": "-", " ": " ", "~": " ", "0": " ", "e": "\\", "\\": "\\", "'": "'", "`": "`", ".": ".", "t": " ", "_": "_",
    "(": "(",
}  # fmt: skip
"""Escapes of one character; one that is not here (`\\&`, `\\|`, `\\%`, `\\:`, `\\c`, ...) leaves nothing."""
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
STRINGS = {"lq": "“", "rq": "”", "R": "®", "Tm": "™"}
"""The strings that the man macros define themselves (groff_man(7))."""


@dataclass(slots=True)
class Section:
    """A section of a page.

    Attributes:
        macros: what has to agree with the other language, in order.
        blocks: its texts, in order; the first is its heading.
    """

    macros: list[str] = field(default_factory=list)
    blocks: list[str] = field(default_factory=list)


def manual_pages(root: Path, language: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The manual's pages, sorted: key (`man:man3/printf.3.gz`) -> their pairs of blocks. Second names are left out.

    Args:
        root: where the packages are unpacked.
        language: as the manual's directories are named: `fr`.
    """
    for path in sorted((root / MANUAL).glob("man*/*.gz")):
        translation = root / MANUAL / language / path.relative_to(root / MANUAL)
        if translation.exists() and not path.is_symlink() and not translation.is_symlink():
            pages = (gzip.decompress(file.read_bytes()).decode("utf-8") for file in (path, translation))
            yield f"man:{path.relative_to(root / MANUAL).as_posix()}", list(aligned_blocks(*pages))


def aligned_blocks(english: str, translation: str) -> Iterator[tuple[str, str]]:
    """The blocks of two pages that correspond, section by section.

    The translation's last section names the translators, and is left out.
    """
    for ours, theirs in zip(sections(english), sections(translation)[:-1], strict=False):
        if ours.macros == theirs.macros and len(ours.blocks) == len(theirs.blocks):
            yield from zip(ours.blocks, theirs.blocks, strict=True)


def sections(page: str) -> list[Section]:
    """A page, cut at its headings. What stands before the first is not text."""
    reader = _Reader()
    for line in page.split("\n"):
        reader.read(line)
    reader.end_block()
    return reader.found


class _Reader:
    def __init__(self) -> None:
        self.found: list[Section] = []
        self._words: list[str] = []
        self._in_heading = False
        self._verbatim_until: str | None = None
        self._link, self._link_begins = "", 0

    def read(self, line: str) -> None:
        call = CALL.fullmatch(line)
        if self._verbatim_until is not None:
            if call and call[1] == self._verbatim_until:
                self._verbatim_until = None
        elif call is None:
            self._add(plain(line))
        else:
            self._call(call[1], [plain(argument) for argument in arguments(call[2])])

    def end_block(self) -> None:
        text = " ".join(" ".join(self._words).split())
        if text and self.found:
            self.found[-1].blocks.append(text)
        self._words.clear()

    def _call(self, name: str, given: list[str]) -> None:
        if name in HEADINGS:
            self.end_block()
            self.found.append(Section([name]))
            self._in_heading = True
            if given:
                self._add(" ".join(given))
        elif name in PARAGRAPHS:
            self.end_block()
        elif name in STRUCTURE or name in VERBATIM:
            self.end_block()
            if self.found:
                self.found[-1].macros.append(name)
            self._verbatim_until = VERBATIM.get(name)
        elif name in FONTS:
            self._add(" ".join(given))
        elif name in ALTERNATING_FONTS:
            self._add("".join(given))
        elif name in LINKS:
            self._link, self._link_begins = "".join(given[:1]), len(self._words)
        elif name in LINK_ENDS:
            text = " ".join(self._words[self._link_begins :]) or self._link
            self._words[self._link_begins :] = [text + "".join(given[:1])]

    def _add(self, text: str) -> None:
        self._words.append(text)
        if self._in_heading:
            # A heading is what the macro is given, or else the line after it.
            self.end_block()
            self._in_heading = False


def plain(text: str) -> str:
    """A text without its escapes, comments dropped."""
    return ESCAPE.sub(_plain, COMMENT.sub("", text))


def arguments(text: str) -> list[str]:
    r"""The arguments of a macro call, escapes still in them: separated by spaces, or in double quotes.

    A space after a backslash doesn't separate, and in quotes two double quotes stand for one.
    """
    found = re.findall(r'"((?:[^"]|"")*)"?|((?:\\.|[^\s\\])(?:\\.|[^\s\\])*)', COMMENT.sub("", text).strip())
    return [quoted.replace('""', '"') or bare for quoted, bare in found]


def _plain(match: re.Match[str]) -> str:
    name = match["name"] if match["name"] is not None else match["pair"]
    if name is not None:
        return _character(name)
    if match["string"] is not None:
        return STRINGS.get(match["string"].strip("[]("), "")
    return SINGLE.get(match["single"] or "", "")


def _character(name: str) -> str:
    if match := re.fullmatch(r"u([0-9A-F]{4,6})", name):
        return chr(int(match[1], 16))
    return GLYPHS.get(name, "")
