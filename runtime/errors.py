"""The errors that every command may raise on purpose, and the exit status that each means.

    Refusal
    |-- UserError             2   the user's mistake: a line that says what and how to mend it
    `-- VerificationFailed    1   a check did not hold; one line per difference

Any other exception that ends a command is a bug of ours and keeps its traceback. No character of a text from outside
ends a line of ours, or changes how the rest of it is shown.
"""

import json
from collections.abc import Sequence
from typing import Any, Final


def escaped(text: str) -> str:
    r"""The text with each character that is not printable as JSON escapes it, e.g. \n, \u0085 or \u202e.

    Those are the control characters (C0, C1), the other line ends (U+2028, U+2029), what has no shape of its own, such
    as the marks that reverse the direction of writing, and every space but the ordinary one.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in text)


MAX_LINE: Final = 400
"""Characters of a line that tells what a stranger's file holds."""

MAX_LINES: Final = 30


class Refusal(Exception):
    """What a command says instead of doing it.

    Attributes:
        summary: one line.
        differences: a line more for each thing that differs.
    """

    def __init__(self, summary: str, differences: Sequence[str] = ()) -> None:
        super().__init__(summary)
        self.summary = summary
        self.differences = tuple(differences)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the refusal with its attributes, so that pools of processes can raise it."""
        return _restored, (type(self), self.args), self.__dict__

    def __str__(self) -> str:
        return "\n  - ".join(map(escaped, [self.summary, *self.differences]))


def _restored(kind: type[Refusal], arguments: tuple[Any, ...]) -> Refusal:
    """Returns a refusal whose attributes are set afterwards."""
    return kind.__new__(kind, *arguments)


class UserError(Refusal):
    """The user's mistake. The message is one clear line: the field, the value, the remedy."""


class VerificationFailed(Refusal):
    """A verification that did not hold."""


def one_line(text: str) -> str:
    """The first line that says something, printable, and cut where it is long."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    # More than is kept is not even looked at: a name may have megabytes.
    shown = escaped(line[: MAX_LINE + 1])
    return shown if len(shown) <= MAX_LINE else shown[: MAX_LINE - 3] + "..."


def reason_of(error: BaseException) -> str:
    """What an exception of somebody else's code says, or its class where it says nothing."""
    return one_line(str(error)) or type(error).__name__


def some_lines(lines: Sequence[str]) -> tuple[str, ...]:
    """Each as one printable line; of very many only the first, with how many more there are."""
    shown = [one_line(escaped(line[: MAX_LINE + 1])) for line in lines[:MAX_LINES]]
    more = len(lines) - len(shown)
    return (*shown, *([f"and {more} more"] if more else []))
