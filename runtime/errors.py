"""What every command may raise on purpose, and the exit status that each means.

    Refusal
    |-- UserError             2   the user's mistake: a line that says what and how to mend it
    `-- VerificationFailed    1   a check did not hold; one line per difference

Anything else that escapes a command is a bug of ours and keeps its traceback.
"""

from collections.abc import Sequence

from attendant.runtime.escaping import escaped


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

    def __str__(self) -> str:
        return "\n  - ".join(map(escaped, [self.summary, *self.differences]))


class UserError(Refusal):
    """The user's mistake. The message is one clear line: the field, the value, the remedy."""


class VerificationFailed(Refusal):
    """A verification that did not hold."""
