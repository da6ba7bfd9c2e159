"""How fast the engine answers, for what those are told whom it refuses."""

MEMORY_SECONDS = 10.0


class Pace:
    """Answers per busy second, where what is longer ago than some seconds of work counts less and less.

    Time in which the engine had nothing to do does not count, so a quiet night does not look like a slow engine.
    """

    def __init__(self) -> None:
        self._busy_seconds = 0.0
        self._answers = 0.0

    def note(self, seconds: float, num_answers: int) -> None:
        """A step took so long, and ended so many requests."""
        kept = max(0.0, 1.0 - seconds / MEMORY_SECONDS)
        self._busy_seconds = self._busy_seconds * kept + seconds
        self._answers = self._answers * kept + num_answers

    def expected_seconds(self, num_requests: int) -> float:
        """How long the engine takes to answer so many; 0 as long as it has answered none."""
        return num_requests * self._busy_seconds / self._answers if self._answers else 0.0
