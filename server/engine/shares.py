"""Resources that are shared: places for bulk requests, and memory for answers.

Places (`FairSemaphore`) are shared by the clients and streams of bulk work, memory (`AnswerBudget`) by all streams.
"""

import asyncio
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Any


class FairSemaphore:
    """A semaphore whose waiting clients take turns, and so do the streams of a client. One client alone may have all.

    Attributes:
        num_permits: total permits.
        num_held: permits taken now.
    """

    def __init__(self, num_permits: int) -> None:
        self.num_permits = num_permits
        self.num_held = 0
        # By client; the client whose turn is next comes first. None of the queues is empty.
        self._waiters: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def is_free(self) -> bool:
        """True if `acquire` would not wait."""
        return self.num_held < self.num_permits and not self._waiters

    async def acquire(self, client: str = "") -> None:
        """Waits for a permit. Clients share the permits evenly."""
        if self.is_free:
            self.num_held += 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(client, deque()).append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():  # a permit has just been assigned to it
                self.release()
            raise

    def release(self) -> None:
        """Returns a permit, which goes to the client whose turn it is."""
        self.num_held -= 1
        while self._waiters and self.num_held < self.num_permits:
            client, queue = next(iter(self._waiters.items()))
            waiter = queue.popleft()
            if not waiter.done():  # else its stream ended while it waited
                self.num_held += 1
                waiter.set_result(None)
                self._waiters.move_to_end(client)
            if not queue:
                del self._waiters[client]


MAX_ANSWER_BYTES = 64 << 20
"""Memory for the answers of all bulk streams together. An answer takes some kilobytes, or megabytes with attention."""

STALLED_SECONDS = 1.0
"""A stream counts as stalled once an answer has waited this long for its client to read."""


class AnswerBudget:
    """Memory for answers: of bulk streams from the reading of a request until its answer has been written.

    An answer to a unary call counts from when it has been made, with all others of its client. A stream may hold as
    much as is still free (dynamic thresholds, Choudhury and Hahne 1998): one such stream takes half of the memory at
    most, two take a third each, and as much as any of them holds is always left for the others.

    Attributes:
        held_bytes: memory in use.
        unread_seconds: time after which an unread answer ends its stream.
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
        self.clock = clock
        self._shares: set[AnswerShare] = set()
        # Bytes of the answers to calls, by client.
        self._of_clients: Counter[str] = Counter()

    def open(self) -> "AnswerShare":
        """Returns a stream's share, to be closed when the stream ends."""
        share = AnswerShare(self)
        self._shares.add(share)
        return share

    def has_room(self, held_bytes: int, num_bytes: int) -> bool:
        """Returns whether a holder of `held_bytes` may hold more. One that holds nothing always may."""
        return not held_bytes or held_bytes + num_bytes <= self.max_bytes - self.held_bytes - num_bytes

    def hold(self, client: str, num_bytes: int, until: "asyncio.Task[Any]") -> bool:
        """Counts the answer to a call until its task ends; returns False if the client leaves too much unread."""
        held = self._of_clients
        if not self.has_room(held[client], num_bytes):
            return False
        self.held_bytes += num_bytes
        held[client] += num_bytes

        def free(_: object) -> None:
            self.held_bytes -= num_bytes
            held[client] -= num_bytes
            if not held[client]:
                del held[client]

        until.add_done_callback(free)
        return True

    def close(self, share: "AnswerShare") -> None:
        """Removes the share of a stream that has ended and returned its memory."""
        self._shares.discard(share)

    @property
    def num_streams(self) -> int:
        return len(self._shares)

    @property
    def num_stalled(self) -> int:
        """Number of streams whose clients do not read."""
        return sum(share.is_stalled for share in self._shares)


class AnswerShare:
    """The memory that one stream holds."""

    def __init__(self, budget: AnswerBudget) -> None:
        self.held_bytes = 0
        self._writing_since: float | None = None
        self._budget = budget
        self._freed = asyncio.Event()

    @property
    def is_stalled(self) -> bool:
        return self._writing_since is not None and self._writing_since < self._budget.clock() - STALLED_SECONDS

    def begin_write(self) -> None:
        """Notes that an answer is being written, which waits for the client to read."""
        self._writing_since = self._budget.clock()

    def end_write(self) -> None:
        self._writing_since = None

    def has_room(self, num_bytes: int) -> bool:
        """Returns whether `take` would not wait.

        A stream that holds nothing always has room. A stalled one has none, so that nothing is decoded in vain.
        """
        is_stalled = self.held_bytes > 0 and self.is_stalled
        return not is_stalled and self._budget.has_room(self.held_bytes, num_bytes)

    async def take(self, num_bytes: int) -> None:
        """Waits until there is room, and holds the memory."""
        # Memory that others free does not wake a waiting stream, which would gain little: the stream itself holds
        # memory, and either frees it soon or its client does not read.
        while not self.has_room(num_bytes):
            self._freed.clear()
            await self._freed.wait()
        self.held_bytes += num_bytes
        self._budget.held_bytes += num_bytes

    def give_back(self, num_bytes: int) -> None:
        self.held_bytes -= num_bytes
        self._budget.held_bytes -= num_bytes
        self._freed.set()
