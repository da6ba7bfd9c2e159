"""What every command may raise on purpose, and the exit status that each means.

    Exception
    |-- UserError             2   the user's mistake: a line that says what and how to mend it
    `-- VerificationFailed    1   a check did not hold; one line per difference

Anything else that escapes a command is a bug of ours and keeps its traceback.
"""

from collections.abc import Sequence


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
