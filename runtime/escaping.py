"""Texts of strangers in lines of ours: no character of theirs ends the line, or changes how the rest of it is shown."""

import json


def escaped(text: str) -> str:
    r"""The text with each character that is not printable as JSON escapes it, e.g. \n, \u0085 or \u202e.

    Those are the control characters (C0, C1), the other line ends (U+2028, U+2029), what has no shape of its own, such
    as the marks that reverse the direction of writing, and every space but the ordinary one.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in text)
