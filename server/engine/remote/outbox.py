"""What a worker has to tell its server: what happens shortly after one another is told together. Pure.

Every message wakes the server's process, which finds that the decoding has evicted its code and data from the caches.
And callers who are answered together ask again together: their next requests are encoded in one call.
"""

import math
from collections.abc import Iterable

from attendant.runtime.decoding.hypothesis import Progress
from attendant.server.engine.request import Outcomes, Result

HELD_PART = 0.2
"""Of the time that a request has taken: its outcome is held no longer, the round that is next included."""

MIN_PART = 3
"""Outcomes leave as soon as they are a third as many as the requests that still run."""

PROGRESS_SECONDS = 0.005
"""Progress is held no longer: a sixth of the time between two messages of a stream. First tokens are not held."""


class Outbox:
    """Outcomes and progress that have not been sent. What leaves, leaves with all the rest."""

    def __init__(self) -> None:
        self._outcomes: Outcomes = []
        self._progress: dict[int, Progress] = {}
        self._send_by = math.inf

    def add(self, outcomes: Outcomes, progress: Iterable[tuple[int, Progress]], now: float) -> None:
        """Takes what a step has ended, and how far it has come with those that stream."""
        for key, more in progress:
            held = self._progress.get(key)
            self._progress[key] = more if held is None else _joined(held, more)
            self._send_by = min(self._send_by, now + (PROGRESS_SECONDS if more.first else 0.0))
        self._outcomes += outcomes
        for _, outcome in outcomes:
            # Nothing of an error's kind follows that it could wait for.
            patience = HELD_PART * outcome.stats.total if isinstance(outcome, Result) else 0.0
            self._send_by = min(self._send_by, now + patience)

    def is_due(self, num_running: int, now: float, round_seconds: float) -> bool:
        """Whether what is held should be sent now, and not after the next round.

        Args:
            num_running: requests that may end next.
            round_seconds: how long the next round will take.
        """
        is_late = now + round_seconds >= self._send_by
        return is_late or (bool(self._outcomes) and len(self._outcomes) * MIN_PART >= num_running)

    def take(self) -> tuple[Outcomes, list[tuple[int, Progress]]]:
        """What is to be sent: outcomes in the order in which they came, progress once for each request."""
        outcomes, progress = self._outcomes, list(self._progress.items())
        self._outcomes, self._progress, self._send_by = [], {}, math.inf
        return outcomes, progress


def _joined(held: Progress, later: Progress) -> Progress:
    """Both together; where they overlap, the later one counts."""
    return Progress(held.first, (*held.token_ids[: later.first - held.first], *later.token_ids))
