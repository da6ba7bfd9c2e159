"""Places that clients share: calls over HTTP, streams, watches."""

from collections import Counter


class Shares:
    """A number of places. A client may take as many as are still free, so another client always gets some."""

    def __init__(self, num_places: int) -> None:
        self.num_places = num_places
        self._taken: Counter[str] = Counter()

    @property
    def num_taken(self) -> int:
        return self._taken.total()

    def take(self, client: str) -> bool:
        """Takes a place, to be given back; returns False if the client has its share."""
        if self._taken[client] >= self.num_places - self.num_taken:
            return False
        self._taken[client] += 1
        return True

    def taken_by(self, client: str) -> int:
        return self._taken[client]

    def give_back(self, client: str) -> None:
        self._taken[client] -= 1
        if not self._taken[client]:
            del self._taken[client]
