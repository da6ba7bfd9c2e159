"""What is wrong with a request: each check says what a value must be, and goes on to the next."""

from attendant.server.errors import InvalidArgument, Violation, shortened

MAX_REQUEST_ID_CHARACTERS = 128


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

    def raise_if_any(self) -> None:
        """Raises InvalidArgument with all of them."""
        if self.found:
            raise InvalidArgument(*self.found)


def check_request_id(request_id: str, violations: Violations) -> None:
    """It is written to the log, and back to the caller: anything short will do, on one line."""
    violations.require(
        len(request_id) <= MAX_REQUEST_ID_CHARACTERS and request_id.isprintable(),
        "request_id",
        request_id,
        f"at most {MAX_REQUEST_ID_CHARACTERS} characters, none of them control characters",
    )


def _shown(value: object) -> str:
    if isinstance(value, str):
        return shortened(value)
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
