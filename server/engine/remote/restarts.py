"""How soon, and how often, worker processes that died are started again. Pure."""

from collections import deque

WINDOW_SECONDS = 600.0
FIRST_DELAY_SECONDS = 0.5
MAX_DELAY_SECONDS = 30.0


class Restarts:
    """The first one within a window follows at once, each further one after twice the time."""

    def __init__(self, max_restarts: int) -> None:
        """`max_restarts`: within WINDOW_SECONDS."""
        self._max = max_restarts
        self._times: deque[float] = deque()

    def delay(self, now: float) -> float | None:
        """A worker has died: the seconds until another one is started; None: too many have."""
        while self._times and self._times[0] <= now - WINDOW_SECONDS:
            self._times.popleft()
        if len(self._times) >= self._max:
            return None
        self._times.append(now)
        earlier = len(self._times) - 1
        return min(FIRST_DELAY_SECONDS * 2 ** (earlier - 1), MAX_DELAY_SECONDS) if earlier else 0.0
