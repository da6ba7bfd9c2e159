"""What is wrong with a request: each check says what a value must be, and goes on to the next."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MAX_SHOWN_VIOLATIONS: Final = 8
MAX_SHOWN_CHARACTERS: Final = 32
MAX_VIOLATION_CHARACTERS: Final = 200


@dataclass(frozen=True, slots=True)
class Violation:
    """One field of a request that can't be served.

    Attributes:
        field: its path, as in the proto: "decoding.beam_size".
        value: as given, ready to print; shortened where it is long.
        limit: what it must be instead.
        quoted: the value is text of the caller's.
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
    """Those found so far."""

    def __init__(self) -> None:
        self.found: list[Violation] = []

    def add(self, field: str, value: object, limit: str) -> None:
        """A value of the caller's."""
        self.found.append(Violation(field, _shown(value), limit, quoted=isinstance(value, str)))

    def say(self, field: str, state: str, limit: str) -> None:
        """What is the matter, in our words: "unset"."""
        self.found.append(Violation(field, state, limit))

    def require(self, held: bool, field: str, value: object, limit: str) -> bool:
        """Adds the value where it does not hold; returns whether it does."""
        if not held:
            self.add(field, value, limit)
        return held


def summary(violations: Sequence[Violation]) -> str:
    """The first few of them, in one line."""
    shown = "; ".join(cut(str(one), MAX_VIOLATION_CHARACTERS) for one in violations[:MAX_SHOWN_VIOLATIONS])
    more = len(violations) - MAX_SHOWN_VIOLATIONS
    return f"{shown}; and {more} more" if more > 0 else shown


def shortened(value: str) -> str:
    """A caller's string as it may stand in a message: quoted, control characters escaped, not too long."""
    return repr(cut(value))


def cut(text: str, most: int = MAX_SHOWN_CHARACTERS) -> str:
    """The text, of which at most so many characters are left, with dots at the end."""
    return text if len(text) <= most else text[: most - 3] + "..."


def _shown(value: object) -> str:
    if isinstance(value, str):
        return shortened(value)
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
