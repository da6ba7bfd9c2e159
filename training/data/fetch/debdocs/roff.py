r"""The text of a line of roff: what `man` would show, without fonts and sizes.

The escapes are those of groff(7): `\fB`, `\s-1` and the like leave nothing; `\-`, `\(em` and `\[aq]` are characters.
"""

import re

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
