"""What every command may raise on purpose, and the exit status that each means.

    Exception
    |-- UserError             2   the user's mistake: a line that says what and how to mend it
    `-- VerificationFailed    1   a check did not hold; one line per difference

Anything else that escapes a command is a bug of ours and keeps its traceback.
"""

from collections.abc import Sequence
from typing import Final

MAX_LINE: Final = 400
"""Characters of a line that tells what a stranger's file holds."""

MAX_LINES: Final = 30


class UserError(Exception):
    """The user's mistake. The message is one clear line: the field, the value, the remedy."""


class VerificationFailed(Exception):
    """A verification that did not hold.

    Attributes:
        differences: one line for each thing that differs.
    """

    def __init__(self, summary: str, differences: Sequence[str]) -> None:
        super().__init__(summary)
        self.differences = tuple(differences)

    def __str__(self) -> str:
        return "\n".join([str(self.args[0]), *(f"  - {line}" for line in self.differences)])


def printable(text: str) -> str:
    """The text with everything escaped that a terminal or a log may take for more than a character."""
    return text if text.isprintable() else "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def one_line(text: str) -> str:
    """The first line that says something, printable, and cut where it is long."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    # More than is kept is not even looked at: a name may have megabytes.
    shown = printable(line[: MAX_LINE + 1])
    return shown if len(shown) <= MAX_LINE else shown[: MAX_LINE - 3] + "..."


def some_lines(lines: Sequence[str]) -> tuple[str, ...]:
    """Each as one printable line; of very many only the first, with how many more there are."""
    shown = [one_line(printable(line[: MAX_LINE + 1])) for line in lines[:MAX_LINES]]
    more = len(lines) - len(shown)
    return (*shown, *([f"and {more} more"] if more else []))
