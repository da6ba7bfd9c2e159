"""How fast an engine answers: the estimate behind the retry times that refused callers are told."""

MEMORY_SECONDS = 10.0


class ThroughputEstimate:
    """Answers per busy second, as a moving average over the last seconds of work.

    Time in which the engine had nothing to do does not count, so a quiet night does not look like a slow engine.
    """

    def __init__(self) -> None:
        self._busy_seconds = 0.0
        self._answers = 0.0

    def note(self, seconds: float, num_answers: int) -> None:
        """A step took so long and answered so many requests."""
        kept = max(0.0, 1.0 - seconds / MEMORY_SECONDS)
        self._busy_seconds = self._busy_seconds * kept + seconds
        self._answers = self._answers * kept + num_answers

    def expected_seconds(self, num_requests: int) -> float:
        """How long the engine takes to answer so many; 0 as long as it has answered none."""
        return num_requests * self._busy_seconds / self._answers if self._answers else 0.0
