"""How fast an engine steps: the estimate behind admission, and behind the times that refused callers are told."""

from attendant.server.engine.request import Priority, StepStats

MEMORY_SECONDS = 5.0
"""Of work: what was measured longer ago fades."""


class ThroughputEstimate:
    """Seconds of a step and of an encoding, over the last seconds of work.

    A step takes a fixed time and a time per row: the line through recent steps. So an engine that has only stepped a
    few rows at a time is not taken to be slow. Time in which it had nothing to do does not count.

    Attributes:
        peak_rows: of the largest step lately.
    """

    def __init__(self) -> None:
        # Sums over recent steps.
        self._steps = self._rows = self._rows_squared = self._seconds = self._row_seconds = 0.0
        self._encode_seconds = self._encodings = self._encoded = 0.0
        self.peak_rows = 1.0

    def note(self, stats: StepStats) -> None:
        """A round of the engine. Bulk work has calls of another size, and does not count."""
        if stats.priority is Priority.BULK:
            return
        phases, rows = stats.phase_seconds, stats.num_rows
        seconds, encode = sum(phases.values()), phases.get("encode", 0.0)
        kept = max(0.0, 1.0 - seconds / MEMORY_SECONDS)
        self._encode_seconds = self._encode_seconds * kept + encode
        self._encodings = self._encodings * kept + (stats.num_encoded > 0)
        self._encoded = self._encoded * kept + stats.num_encoded
        step = seconds - encode
        self._steps = self._steps * kept + (rows > 0)
        self._rows = self._rows * kept + rows
        self._rows_squared = self._rows_squared * kept + rows * rows
        self._seconds = self._seconds * kept + step
        self._row_seconds = self._row_seconds * kept + step * rows
        self.peak_rows = max(1.0, rows, self.peak_rows * kept)

    def step_seconds(self, num_rows: float) -> float:
        """Of a step of so many rows; 0 as long as there was none."""
        if not self._rows:
            return 0.0
        mean_rows, mean_seconds = self._rows / self._steps, self._seconds / self._steps
        variance = self._rows_squared / self._steps - mean_rows**2
        if variance > 0.01 * mean_rows**2:
            slope = (self._row_seconds / self._steps - mean_rows * mean_seconds) / variance
        else:  # all of one size: no line
            slope = mean_seconds / mean_rows
        slope = min(max(slope, 0.0), mean_seconds / mean_rows)
        return max(mean_seconds + slope * (num_rows - mean_rows), 0.0)

    def seconds(self, work: float, num_requests: float, max_rows: int) -> float:
        """Of so many rows x steps of so many requests, with as many rows together as there have been lately.

        Args:
            max_rows: that may be stepped together.
        """
        if not work and not num_requests:  # most requests find nobody who waits
            return 0.0
        rows = min(max_rows, 2 * self.peak_rows)
        encoding = num_requests * self._encode_seconds / self._encoded if self._encoded else 0.0
        return work * self.step_seconds(rows) / rows + encoding

    @property
    def encode_seconds(self) -> float:
        """Of an encoding, of however many requests; 0 as long as there was none."""
        return self._encode_seconds / self._encodings if self._encodings else 0.0
