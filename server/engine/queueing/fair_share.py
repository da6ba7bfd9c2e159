"""Whose round it is when both interactive and bulk work are there: fair sharing by deficit. Pure."""


class FairShare:
    """Interactive work goes first, and bulk work gets a share of the time, so that it never starves.

    Each interactive round earns bulk work a part of that round's duration. Bulk work has a round whenever its credit
    covers one. Credit is only kept while both priorities have work: time that nobody else wanted is not charged for.
    """

    def __init__(self, bulk_share: float) -> None:
        """`bulk_share`: of the time, between 0 and 1, while both priorities have work."""
        self._rate = bulk_share / (1 - bulk_share)
        self._credit_seconds = 0.0
        self._last_bulk_seconds = 0.0

    def is_bulk_turn(self) -> bool:
        """For a round that both priorities want."""
        return self._credit_seconds > 0 and self._credit_seconds >= self._last_bulk_seconds

    def note(self, *, bulk: bool, seconds: float, contended: bool) -> None:
        """A round took so long; contended: the other priority wanted it too."""
        if bulk:
            self._last_bulk_seconds = seconds
        if not contended:
            self._credit_seconds = 0.0
        elif bulk:
            self._credit_seconds -= seconds
        else:
            self._credit_seconds += self._rate * seconds
