"""Estimates that an engine and its server learn from finished work: lengths of answers, speed, sizes of calls. Pure."""

from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.stepper import padded_width
from attendant.server.engine.request import Priority, StepStats

MAX_RISE = 2.0
"""A single value counts as at most this many times the average: more is an outlier, or comes again."""


def averaged(average: float | None, value: float, weight: float) -> float:
    """An exponential moving average after another value.

    Args:
        average: before; None: this is the first value.
        weight: of the value; 0 to 1.
    """
    return value if average is None else average + weight * (min(value, MAX_RISE * average) - average)


MEMORY = 64
"""Answers that a mean is made of, about: older ones fade."""


class Lengths:
    """Mean steps of a model's answers, by padded source width and beam size.

    Where there is no answer of that width and beam size yet, the steps are estimated from the mean ratio of steps to
    source positions, which begins at 1.
    """

    def __init__(self) -> None:
        self._steps: dict[tuple[int, int], float] = {}
        self._steps_per_position = 1.0

    def expected(self, num_positions: int, options: DecodingOptions) -> float:
        """Steps of a source of so many positions, from 1 up."""
        if options.scores_prefix:
            return float(len(options.target_prefix))
        known = self._steps.get(_kind(num_positions, options))
        steps = self._steps_per_position * num_positions if known is None else known
        # The last step decides whether it ends.
        return min(max(steps, options.min_length + 1), options.max_length + 1)

    def note(self, num_positions: int, options: DecodingOptions, num_steps: int) -> None:
        """A request was answered after so many steps."""
        if options.scores_prefix or options.min_length >= num_steps - 1:
            return  # its caller has said how long it is
        kind = _kind(num_positions, options)
        known = self._steps.get(kind)
        if num_steps > options.max_length and known is not None and known > num_steps:
            return  # cut: it would have been longer
        self._steps[kind] = num_steps if known is None else known + (num_steps - known) / MEMORY
        ratio = num_steps / num_positions
        self._steps_per_position += (ratio - self._steps_per_position) / MEMORY


def _kind(num_positions: int, options: DecodingOptions) -> tuple[int, int]:
    return padded_width(num_positions), options.beam_size


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


SMOOTHING = 0.2
"""Weight of the newest call in the moving average: one that the operating system held up does not count for much."""

MAX_GROWTH = 2.0
"""The budget is at most this many times the last call that was measured: larger calls are approached step by step."""


class BatchBudget:
    """The units of work (rows of a step, positions of an encoding) that take a given time."""

    def __init__(self, seconds: float, initial: int) -> None:
        self._seconds = seconds
        self._limit = float(initial)
        self._unit_seconds: float | None = None

    @property
    def units(self) -> int:
        """At least 1, so that work always goes on."""
        return max(1, int(self._limit))

    def note(self, seconds: float, units: int) -> None:
        """Learns from a call of so many units, which took so long.

        Calls much smaller than the budget say little about calls of its size, unless they took too long themselves;
        and a call shorter than the clock's resolution says nothing.
        """
        if seconds <= 0 or (units < self._limit / 2 and seconds < self._seconds):
            return
        self._unit_seconds = averaged(self._unit_seconds, seconds / units, SMOOTHING)
        self._limit = min(self._seconds / self._unit_seconds, MAX_GROWTH * units)


FACTOR = 5.0

"""A round may take so many times as long as rounds of its size do."""


RISE = 0.2


FALL = 0.01

"""Weight of the newest round in the average: slow ones count for more, because the bound must be above them."""


class RoundBound:
    """Learns how long rounds take, by the amount of work that a worker has, in steps of powers of two."""

    def __init__(self, floor_seconds: float) -> None:
        self._floor = floor_seconds
        self._seconds: dict[int, float] = {}

    def note(self, size: int, seconds: float) -> None:
        """A round took so long while the worker had so much work (`size_of` all its requests)."""
        scale = size.bit_length()
        known = self._seconds.get(scale)
        weight = RISE if known is not None and seconds > known else FALL
        self._seconds[scale] = averaged(known, seconds, weight)

    def seconds(self, size: int) -> float:
        """The longest silence that is not a hang. Where only smaller rounds are known, time grows with the work."""
        if not self._seconds:
            return self._floor
        scale = size.bit_length()
        nearest = max((one for one in self._seconds if one <= scale), default=min(self._seconds))
        expected = self._seconds[nearest] * 2.0 ** max(0, scale - nearest)
        return max(self._floor, FACTOR * expected)
