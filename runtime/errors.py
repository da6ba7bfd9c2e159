"""The errors that every command may raise on purpose, and the exit status that each means.

    Refusal
    |-- UserError             2   the user's mistake: a line with the field, the value and the remedy
    `-- VerificationFailed    1   a check did not hold; one line per difference

Any other exception that ends a command is a bug of ours and keeps its traceback. Texts from outside can neither
end a line of a message nor change how the rest of it is shown. A request may have several errors, its `Violations`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final


def escaped(text: str) -> str:
    r"""Escapes characters that are not printable as JSON does, e.g. \n, \u0085 or \u202e.

    Those are the control characters (C0, C1), the other line ends (U+2028, U+2029), invisible characters such as marks
    of the direction of writing, and every space except the ordinary one.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


MAX_LINE: Final = 400  # Characters of a line that shows a part of a file from elsewhere.
MAX_LINES: Final = 30


class Refusal(Exception):
    """The reason why a command does not do its work.

    Attributes:
        summary: one line.
        differences: further lines, one per difference.
    """

    def __init__(self, summary: str, differences: Sequence[str] = ()) -> None:
        super().__init__(summary)
        self.summary = summary
        self.differences = tuple(differences)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the refusal with its attributes, so that pools of processes can raise it."""
        return type(self).__new__, (type(self), *self.args), vars(self)

    def __str__(self) -> str:
        return "\n  - ".join(map(escaped, [self.summary, *self.differences]))


class UserError(Refusal):
    """The user's mistake. The message is one clear line: the field, the value, the remedy."""


class VerificationFailed(Refusal):
    """A verification that failed."""


def one_line(text: str) -> str:
    """Returns the first non-empty line, printable and cut to MAX_LINE."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    # Only the kept part is escaped: a name may have megabytes.
    shown = escaped(line[: MAX_LINE + 1])
    return shown if len(shown) <= MAX_LINE else shown[: MAX_LINE - 3] + "..."


def shown(value: object) -> str:
    """Returns a value of the caller's for a message, such as a data frame: a line, cut to MAX_LINE."""
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits, whose decimal form Python refuses to compute
        text = "a number that is far too large"
    return one_line(text)


def reason_of(error: BaseException) -> str:
    """Returns the message of a library's exception, or its class if it has none."""
    return one_line(str(error)) or type(error).__name__


def some_of(parts: Sequence[str], most: int, separator: str = ", ") -> str:
    """Joins the first `most` parts, and the number of the others."""
    others = len(parts) - most
    return separator.join([*parts[:most], *([f"and {others} more"] if others > 0 else [])])


def some_lines(lines: Sequence[str]) -> tuple[str, ...]:
    """Returns printable lines; of more than MAX_LINES only the first, and the number of further lines."""
    shown = [one_line(escaped(line[: MAX_LINE + 1])) for line in lines[:MAX_LINES]]
    more = len(lines) - len(shown)
    return (*shown, *([f"and {more} more"] if more else []))


MAX_SHOWN_VIOLATIONS: Final = 8
MAX_SHOWN_CHARACTERS: Final = 32
MAX_VIOLATION_CHARACTERS: Final = 200


@dataclass(frozen=True, slots=True)
class Violation:
    """A wrong field of a request.

    Attributes:
        field: its path, as in the proto: "decoding.beam_size".
        value: ready to print; shortened if it is long.
        limit: the allowed values.
        quoted: the value is the caller's text.
    """

    field: str
    value: str
    limit: str
    quoted: bool = False

    @property
    def description(self) -> str:
        return f"is {self.value}, must be {self.limit}"

    def __str__(self) -> str:
        return f"{self.field} {self.description}"


class Violations(list[Violation]):
    """The violations of a request so far."""

    def add(self, field: str, value: object, limit: str) -> None:
        """Adds a wrong value of the caller."""
        self.append(Violation(field, _printed(value), limit, quoted=isinstance(value, str)))

    def add_state(self, field: str, state: str, limit: str) -> None:
        """Adds a violation with a description of the field's state, such as "unset"."""
        self.append(Violation(field, state, limit))

    def require(self, held: bool, field: str, value: object, limit: str) -> bool:
        """Adds the value unless the check held; returns whether it held."""
        if not held:
            self.add(field, value, limit)
        return held


def summary(violations: Sequence[Violation]) -> str:
    """Returns a line with the first MAX_SHOWN_VIOLATIONS violations, and the number of the others."""
    lines = [cut(str(violation), MAX_VIOLATION_CHARACTERS) for violation in violations]
    return some_of(lines, MAX_SHOWN_VIOLATIONS, "; ")


def shortened(value: str) -> str:
    """Returns a caller's string for a message: quoted, control characters escaped, shortened."""
    return repr(cut(value))


def cut(text: str, most: int = MAX_SHOWN_CHARACTERS) -> str:
    """Shortens a text to `most` characters, with dots at the end."""
    return text if len(text) <= most else text[: most - 3] + "..."


def _printed(value: object) -> str:
    if isinstance(value, str):
        return shortened(value)
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
