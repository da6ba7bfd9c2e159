"""The violations of a request: all wrong fields, reported together, by the names of the API."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

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


class Violations:
    """The violations of a request so far."""

    def __init__(self) -> None:
        self.found: list[Violation] = []

    def add(self, field: str, value: object, limit: str) -> None:
        """Adds a wrong value of the caller."""
        self.found.append(Violation(field, _shown(value), limit, quoted=isinstance(value, str)))

    def say(self, field: str, state: str, limit: str) -> None:
        """Adds a violation with a description of the field's state, such as "unset"."""
        self.found.append(Violation(field, state, limit))

    def require(self, held: bool, field: str, value: object, limit: str) -> bool:
        """Adds the value unless the check held; returns whether it held."""
        if not held:
            self.add(field, value, limit)
        return held


def summary(violations: Sequence[Violation]) -> str:
    """Returns the first few violations in one line."""
    shown = "; ".join(cut(str(violation), MAX_VIOLATION_CHARACTERS) for violation in violations[:MAX_SHOWN_VIOLATIONS])
    more = len(violations) - MAX_SHOWN_VIOLATIONS
    return f"{shown}; and {more} more" if more > 0 else shown


def shortened(value: str) -> str:
    """Returns a caller's string for a message: quoted, control characters escaped, shortened."""
    return repr(cut(value))


def cut(text: str, most: int = MAX_SHOWN_CHARACTERS) -> str:
    """Shortens a text to `most` characters, with dots at the end."""
    return text if len(text) <= most else text[: most - 3] + "..."


def _shown(value: object) -> str:
    if isinstance(value, str):
        return shortened(value)
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
