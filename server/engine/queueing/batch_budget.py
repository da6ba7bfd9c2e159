"""How large a bulk batch may be, so that an interactive request that arrives meanwhile does not wait long. Pure.

A call into the model can't be interrupted, so a call for bulk work is made no larger than what takes a given time. The
size is learned from the calls so far: the time allowed, divided by the cost of a unit in recent calls. Fixed costs make
a unit of a small call look expensive, so the size grows step by step to where a call takes just the time allowed.
"""

from attendant.server.engine.averaging import averaged

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
