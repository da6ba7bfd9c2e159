"""Estimates from recent work, for admission, dispatch and supervision: means, seconds of a step, expected ends."""

import math
from bisect import bisect_left, insort

from attendant.server.engine.messages import EngineRequest, Priority, StepStats


class MovingAverage:
    """An exponential moving average.

    Attributes:
        value: 0 before the first value.
    """

    def __init__(self, weight: float, value: float | None = None, max_rise: float = math.inf) -> None:
        """Starts an average.

        Args:
            weight: of each new value; 0 to 1.
            max_rise: a value counts as at most this many times the average: more is an outlier, or comes again.
        """
        self.value = value or 0.0
        self._is_empty = value is None
        self._weight = weight
        self._max_rise = max_rise

    def add(self, value: float, weight: float | None = None) -> float:
        """Adds a value, with `weight` instead of the usual one if it is not None; returns the new average."""
        if self._is_empty:
            self.value, self._is_empty = value, False
        else:
            self.value += (weight or self._weight) * (min(value, self._max_rise * self.value) - self.value)
        return self.value


MEMORY_SECONDS = 5.0
"""Seconds of work after which a measurement has faded."""


class ThroughputEstimate:
    """Seconds of a step and of an encoding, over the last seconds of work.

    A step takes a fixed time and a time per row: the line through recent steps. So an engine that has only stepped a
    few rows at a time does not count as slow. Idle time does not count.

    Attributes:
        peak_rows: rows of the largest recent step.
    """

    def __init__(self) -> None:
        # Sums over recent steps.
        self._steps = self._rows = self._rows_squared = self._seconds = self._row_seconds = 0.0
        self._encode_seconds = self._encodings = self._encoded = 0.0
        self.peak_rows = 1.0

    def note(self, stats: StepStats) -> None:
        """Learns from a round of the engine. Bulk rounds do not count, because their calls have another size."""
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
        """Returns the seconds of a step of `num_rows` rows; 0 before the first step."""
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
        """Returns the seconds that requests take, with about as many rows in a step as recently.

        Args:
            work: rows x steps of the requests.
            max_rows: limit of the rows in a step.
        """
        if not work and not num_requests:  # most requests find an empty queue
            return 0.0
        rows = min(max_rows, 2 * self.peak_rows)
        encoding = num_requests * self._encode_seconds / self._encoded if self._encoded else 0.0
        return work * self.step_seconds(rows) / rows + encoding

    @property
    def encode_seconds(self) -> float:
        """Seconds of an encoding, whatever its number of requests; 0 before the first one."""
        return self._encode_seconds / self._encodings if self._encodings else 0.0


class ExpectedEnds:
    """The requests of one priority that workers have, in the order in which they are expected to end.

    Attributes:
        num_rows: rows of these requests.
    """

    def __init__(self) -> None:
        self.num_rows = 0
        self._ends: list[tuple[float, int, int]] = []  # Sorted; each with the request's key and rows.
        self._sent: dict[int, tuple[float, float, EngineRequest]] = {}  # By key: the end, the time of sending.

    def add(self, request: EngineRequest, now: float, step_seconds: float) -> None:
        """Adds a request that was sent now, when a step takes `step_seconds`."""
        end = now + request.expected_steps * step_seconds
        self._sent[request.key] = end, now, request
        insort(self._ends, (end, request.key, request.max_rows))
        self.num_rows += request.max_rows

    def remove(self, key: int) -> None:
        """Removes a request that no worker has any more, if it is here."""
        if (sent := self._sent.pop(key, None)) is not None:
            end, _, request = sent
            del self._ends[bisect_left(self._ends, (end, key, 0))]
            self.num_rows -= request.max_rows

    def freeing(self, num_rows: int, num_ahead: float) -> tuple[float, float] | None:
        """Returns the time of sending and the expected steps of the request whose end frees a new request's rows.

        That is the last one if even all ends do not free enough; None if there are no requests.

        Args:
            num_rows: rows of the new request that are not free now.
            num_ahead: number of requests that wait before it. Each counts as the mean rows of a request here.
        """
        if not self._ends:
            return None
        missing = num_rows + num_ahead * self.num_rows / len(self._ends)
        for next_end in self._ends:
            missing -= next_end[2]
            if missing <= 0:
                break
        _, sent, request = self._sent[next_end[1]]
        return sent, request.expected_steps
