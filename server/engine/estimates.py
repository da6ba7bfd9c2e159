"""Estimates that an engine and its server learn from finished work: lengths of answers, speed, sizes of calls. Pure."""

import math

from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.stepper import padded_width
from attendant.server.engine.messages import Priority, StepStats


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


LENGTH_WEIGHT = 1 / 64
"""Weight of an answer in the mean steps of its kind."""


class Lengths:
    """Mean steps of a model's answers, by padded source width and beam size.

    For a width and beam size without answers yet, steps are estimated by the mean ratio of steps to source positions.
    """

    def __init__(self) -> None:
        self._steps: dict[tuple[int, int], MovingAverage] = {}
        self._steps_per_position = MovingAverage(LENGTH_WEIGHT, 1.0)

    def expected(self, num_positions: int, options: DecodingOptions) -> float:
        """Returns the expected steps, at least 1, of a source of `num_positions` positions."""
        if options.scores_prefix:
            return float(len(options.target_prefix))
        known = self._steps.get((padded_width(num_positions), options.beam_size))
        steps = self._steps_per_position.value * num_positions if known is None else known.value
        # The last step decides whether it ends.
        return min(max(steps, options.min_length + 1), options.max_length + 1)

    def note(self, num_positions: int, options: DecodingOptions, num_steps: int) -> None:
        """Learns from a request that was answered after `num_steps` steps."""
        if options.scores_prefix or options.min_length >= num_steps - 1:
            return  # the caller chose the length
        kind = padded_width(num_positions), options.beam_size
        known = self._steps.get(kind)
        if known is None:
            known = self._steps[kind] = MovingAverage(LENGTH_WEIGHT)
        elif num_steps > options.max_length and known.value > num_steps:
            return  # cut: it would have been longer
        known.add(num_steps)
        self._steps_per_position.add(num_steps / num_positions)


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


CALL_WEIGHT = 0.2
"""Weight of a call in the mean cost of a unit: a call that the operating system interrupted does not count for much."""

MAX_RISE = 2.0

MAX_GROWTH = 2.0
"""The budget is at most this many times the last measured call: larger calls are approached step by step."""


class BatchBudget:
    """Units of work (rows of a step, positions of an encoding) that a call into the model may have.

    A call can't be interrupted. So that interactive requests do not wait long for it, a call for other work is made no
    larger than fits into a given time: that time, divided by the cost of a unit in recent calls. Fixed costs make units
    of small calls look expensive, so the size grows step by step to where a call takes just the given time.
    """

    def __init__(self, seconds: float, initial: int) -> None:
        self._seconds = seconds
        self._limit = float(initial)
        self._unit_seconds = MovingAverage(CALL_WEIGHT, max_rise=MAX_RISE)

    @property
    def units(self) -> int:
        """At least 1, so that work always goes on."""
        return max(1, int(self._limit))

    def note(self, seconds: float, units: int) -> None:
        """Learns from a call.

        Calls much smaller than the budget are ignored unless they took too long: they say little about large ones. So
        are calls that are shorter than the clock's resolution.
        """
        if seconds > 0 and (units >= self._limit / 2 or seconds >= self._seconds):
            self._limit = min(self._seconds / self._unit_seconds.add(seconds / units), MAX_GROWTH * units)


HANG_FACTOR = 5.0
"""A round may take this many times as long as rounds of its size do."""

SLOWER_WEIGHT = 0.2
FASTER_WEIGHT = 0.01
"""Weights of a round in the average: slow ones count for more, because the bound must be above them."""


class RoundBound:
    """Learns how long rounds take, by the amount of work that a worker has, in steps of powers of two.

    A worker reports after each round that ends a request, and otherwise now and then. So its silence is as long as a
    round takes. The bound is a multiple of that, and never below a floor, because hosts are sometimes slow.
    """

    def __init__(self, floor_seconds: float) -> None:
        self._floor = floor_seconds
        self._seconds: dict[int, MovingAverage] = {}

    def note(self, size: int, seconds: float) -> None:
        """Learns from a round of a worker whose requests have the total `size_of` size."""
        known = self._seconds.setdefault(size.bit_length(), MovingAverage(FASTER_WEIGHT, max_rise=MAX_RISE))
        known.add(seconds, SLOWER_WEIGHT if seconds > known.value else FASTER_WEIGHT)

    def seconds(self, size: int) -> float:
        """Returns the longest silence that is not a hang. Beyond known sizes, time grows with the work."""
        if not self._seconds:
            return self._floor
        scale = size.bit_length()
        nearest = max((known for known in self._seconds if known <= scale), default=min(self._seconds))
        expected = self._seconds[nearest].value * 2.0 ** max(0, scale - nearest)
        return max(self._floor, HANG_FACTOR * expected)
