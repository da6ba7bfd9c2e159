"""How long a worker that has work may say nothing before it is taken for hung. Pure.

A worker reports after each round of its engine that ends a request, and after others now and then. So its silence is
as long as a round takes, and that depends on how much is computed in it. The bound is a multiple of what rounds of that
much work have taken, and never below a floor, for hosts are sometimes slow for other reasons.
"""

from attendant.server.engine.averaging import averaged

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


class Silence:
    """How long nothing was heard of a worker, counted in the watchdog's ticks.

    A tick that comes late says that this process was held up itself (stopped, or the whole machine was). Nothing could
    be heard then, so that time does not count.
    """

    def __init__(self, tick_seconds: float) -> None:
        self._tick = tick_seconds
        self.heard()

    def heard(self) -> None:
        # It may have been at any time between two ticks.
        self.seconds = -self._tick

    def tick(self, elapsed_seconds: float) -> None:
        self.seconds += min(elapsed_seconds, 2 * self._tick)
