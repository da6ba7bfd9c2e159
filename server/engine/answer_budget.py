"""The memory that answers may take: of bulk streams, from the reading of a request until its answer has been written.

An answer to a unary call counts from when it has been made, with all others of its client.

No more requests are read from a client that has not read an answer for a second, so that nothing is decoded in vain,
nor from a stream that holds as much as it may. That is as much as is still free (dynamic thresholds, Choudhury and
Hahne 1998): one such stream takes half of the memory at most, two take a third each, and as much as any one of them
holds is always left for the others.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

MAX_ANSWER_BYTES = 64 << 20
"""For all bulk streams of a server together. An answer takes some kilobytes, or megabytes with attention."""

STALLED_SECONDS = 1.0
"""A stream counts as stalled once an answer of it has waited so long for its client."""


class AnswerBudget:
    """The memory of all streams.

    Attributes:
        held_bytes: what is taken now.
        unread_seconds: how long an answer may wait for its client to read; then its stream is ended.
    """

    def __init__(
        self,
        *,
        unread_seconds: float,
        max_bytes: int = MAX_ANSWER_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_bytes = max_bytes
        self.unread_seconds = unread_seconds
        self.held_bytes = 0
        self._clock = clock
        self._shares: set[AnswerShare] = set()
        self._of_clients: dict[str, AnswerShare] = {}

    def open(self) -> "AnswerShare":
        """A stream's share, to be closed when the stream ends."""
        share = AnswerShare(self)
        self._shares.add(share)
        return share

    def hold(self, client: str, num_bytes: int, until: "asyncio.Task[Any]") -> bool:
        """Counts the answer to a call, until its task ends; returns False if the client leaves too much unread."""
        share = self._of_clients.setdefault(client, AnswerShare(self))
        if not share.has_room(num_bytes):
            return False
        share.hold(num_bytes)

        def free(_: object) -> None:
            share.give_back(num_bytes)
            if not share.held_bytes:
                self._of_clients.pop(client, None)

        until.add_done_callback(free)
        return True

    def close(self, share: "AnswerShare") -> None:
        """The stream has ended, and given back what it held."""
        self._shares.discard(share)

    @property
    def free_bytes(self) -> int:
        return self.max_bytes - self.held_bytes

    def now(self) -> float:
        return self._clock()

    @property
    def num_streams(self) -> int:
        return len(self._shares)

    @property
    def num_stalled(self) -> int:
        """Streams of which an answer waits for its client."""
        return sum(share.is_stalled for share in self._shares)


class AnswerShare:
    """What one stream holds.

    Attributes:
        writing_since: when the answer that is being written was begun; None: none is.
    """

    def __init__(self, budget: AnswerBudget) -> None:
        self.held_bytes = 0
        self.writing_since: float | None = None
        self._budget = budget
        self._freed = asyncio.Event()

    @property
    def is_stalled(self) -> bool:
        return self.writing_since is not None and self.writing_since < self._budget.now() - STALLED_SECONDS

    def has_room(self, num_bytes: int) -> bool:
        """Whether so much may be held, and the client takes answers: `take` would not wait."""
        if not self.held_bytes:
            return True
        return not self.is_stalled and self.held_bytes + num_bytes <= self._budget.free_bytes - num_bytes

    async def take(self, num_bytes: int) -> None:
        """Waits until there is room for so much. A stream that holds nothing need not wait."""
        # What others free wakes nobody up here, which would gain little: a stream that waits holds something itself.
        # It gives that back soon, or its client does not read.
        while not self.has_room(num_bytes):
            self._freed.clear()
            await self._freed.wait()
        self.hold(num_bytes)

    def hold(self, num_bytes: int) -> None:
        """Takes so much, for which there is room."""
        self.held_bytes += num_bytes
        self._budget.held_bytes += num_bytes

    def give_back(self, num_bytes: int) -> None:
        self.held_bytes -= num_bytes
        self._budget.held_bytes -= num_bytes
        self._freed.set()
