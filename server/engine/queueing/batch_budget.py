"""How much bulk work may be done at once, so that an interactive request that comes meanwhile does not wait long. Pure.

What is under way can't be interrupted, so a call into the model on behalf of bulk work may take so long and no longer.
How much work that is, is learned from what calls have taken: the next limit is the time over the cost of a unit in the
last calls. Fixed costs make small calls look dear, so the limit grows, step by step, to where a call of its size takes
just the time allowed.
"""

SMOOTHING = 0.2
"""Weight of the newest call: one that the operating system held up does not count for much."""

MAX_RISE = 2.0
"""Factor over what is known by which one call may look dearer: more is an interruption, or comes again."""

MAX_GROWTH = 2.0
"""Factor by which the limit may pass what was really measured: larger calls are approached, not jumped at."""


class Allowance:
    """The units of work (rows of a step, positions of an encoding) that take a given time."""

    def __init__(self, seconds: float, initial: int) -> None:
        self._seconds = seconds
        self._limit = float(initial)
        self._unit_seconds: float | None = None

    @property
    def units(self) -> int:
        """At least 1: something must go on."""
        return max(1, int(self._limit))

    def note(self, seconds: float, units: int) -> None:
        """A call of so many units took so long.

        Calls much smaller than the limit say little about calls of its size, unless they took too long themselves; and
        what took no time that the clock can tell says nothing.
        """
        if seconds <= 0 or (units < self._limit / 2 and seconds < self._seconds):
            return
        cost, known = seconds / units, self._unit_seconds
        if known is None:
            self._unit_seconds = cost
        else:
            self._unit_seconds = known + SMOOTHING * (min(cost, MAX_RISE * known) - known)
        self._limit = min(self._seconds / self._unit_seconds, MAX_GROWTH * units)


class Turns:
    """Whose turn it is when both interactive and bulk work want to go on.

    Interactive work goes first; bulk work gets a share of the time, so that it never stands still: each interactive
    round earns it a part of that round's duration, and it has a round whenever it has earned one. What it does while
    it is alone is neither earned nor owed.
    """

    def __init__(self, bulk_share: float) -> None:
        self._rate = bulk_share / (1 - bulk_share)
        self._earned = 0.0
        self._bulk_seconds = 0.0

    def is_bulk_turn(self) -> bool:
        """For a round that both want."""
        return self._earned > 0 and self._earned >= self._bulk_seconds

    def note(self, *, bulk: bool, seconds: float, contended: bool) -> None:
        """A round took so long; contended: the other priority wanted it too."""
        if bulk:
            self._bulk_seconds = seconds
        if not contended:
            self._earned = 0.0
        elif bulk:
            self._earned -= seconds
        else:
            self._earned += self._rate * seconds
