"""Whose round it is when two parties both have work: fair sharing of time by deficit. Pure."""


class FairShare:
    """One party goes first, and the other gets a share of the time, so that it never starves.

    Each round of the first earns the other a part of that round's duration. The other has a round whenever its credit
    covers one. Credit is only kept while both have work: time that nobody else wanted is not charged for.
    """

    def __init__(self, patience_seconds: float = 0.0) -> None:
        """`patience_seconds`: credit that the other must have beyond one round, so that short bursts have no break."""
        self._patience_seconds = patience_seconds
        self._credit_seconds = 0.0
        self._last_seconds = 0.0

    def is_turn(self) -> bool:
        """Whether a round that both want is the other's."""
        return self._credit_seconds > 0 and self._credit_seconds >= self._patience_seconds + self._last_seconds

    def note(self, seconds: float, *, first: bool, contended: bool, share: float) -> None:
        """A round took so long.

        Args:
            first: it was that of whoever goes first.
            contended: the other one wanted it too.
            share: the other's, of the time while both have work; from 0 to 1, exclusive.
        """
        if not first:
            self._last_seconds = seconds
        if not contended:
            self._credit_seconds = 0.0
        elif first:
            self._credit_seconds += seconds * share / (1 - share)
        else:
            self._credit_seconds -= seconds
