"""Resources that are shared: places for bulk requests, memory for answers, and the rows of all models.

Places (`FairSemaphore`) are shared by the clients and streams of bulk work, memory (`AnswerBudget`) by all streams,
rows (`SharedRows`) by the models and versions of a server.
"""

import asyncio
import itertools
import math
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Any

from attendant.server.engine.messages import Priority


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


RESERVED = (Priority.INTERACTIVE, Priority.HEAVY)
"""Priorities whose requests are sent to a worker only once the server has rows for them."""

ALONE_SECONDS = 1.0
"""Bulk work counts as alone if no other request arrived for this long and none is unanswered."""


class SharedRows:
    """One budget of rows, per priority, for all models and versions in a server. Pure.

    A version's interactive and heavy requests go to its workers only when the server has rows for them. Freed rows go
    to the waiting version that holds fewest (max-min fairness): one version alone may have all of them; several that
    want more than there are converge to equal shares. Rows count until their request has ended.

    The rows for bulk requests are divided evenly among the versions that have any. While bulk work is alone, its calls
    into the model may take longer. The server decides that, because a worker does not see the requests of others, and
    every worker slows down all of them.
    """

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._budgets = {priority: _Budget(max_rows) for priority in RESERVED}
        self._with_bulk: dict[Callable[[int, bool], None], None] = {}
        self._bulk_is_alone = False
        self._last_request = -math.inf

    def share(self, priority: Priority, retry: Callable[[], None]) -> "RowShare":
        """Returns a version's share; `retry` is called when rows may be free for it."""
        return RowShare(self._budgets[priority], retry)

    def divide_bulk(self, limit: Callable[[int, bool], None], *, has_bulk: bool) -> None:
        """Registers that the workers of a version have bulk requests from now on, or have none any more.

        Args:
            limit: called, while they have some, with the number of such versions and whether bulk work is alone.
        """
        if has_bulk:
            self._with_bulk[limit] = None
        else:
            self._with_bulk.pop(limit, None)
        self._limit_bulk()

    def note_request(self, now: float) -> None:
        """Ends the time of bulk work alone, because another request has arrived."""
        self._last_request = now
        if self._bulk_is_alone:
            self._bulk_is_alone = False
            self._limit_bulk()

    def tick(self, now: float) -> None:
        """Checks whether bulk work is alone by now."""
        is_idle = all(budget.free == self._max_rows and not budget.waiting for budget in self._budgets.values())
        if not self._bulk_is_alone and is_idle and now - self._last_request >= ALONE_SECONDS:
            self._bulk_is_alone = True
            self._limit_bulk()

    def _limit_bulk(self) -> None:
        for limit in self._with_bulk:
            limit(len(self._with_bulk), self._bulk_is_alone)


class _Budget:
    """The rows of one priority: the free ones, and the shares that were refused rows."""

    def __init__(self, free: int) -> None:
        self.free = free
        self.waiting: set[RowShare] = set()
        self.arrivals = itertools.count()


class RowShare:
    """The rows that one version holds: those of requests that were sent to workers."""

    def __init__(self, budget: _Budget, retry: Callable[[], None]) -> None:
        self._budget = budget
        self._retry = retry
        # Among shares that hold equally many rows, the one that has waited longest goes first.
        self._arrival = math.inf
        self._held = 0

    @property
    def _turn(self) -> tuple[int, float]:
        return self._held, self._arrival

    def take(self, num_rows: int) -> bool:
        """Takes rows; returns False if they are not free, or if another waiting version goes first."""
        budget = self._budget
        if num_rows <= budget.free and (
            not budget.waiting or self._turn <= min(other._turn for other in budget.waiting)
        ):
            budget.waiting.discard(self)
            self._arrival = math.inf
            budget.free -= num_rows
            self._held += num_rows
            return True
        if self not in budget.waiting:
            budget.waiting.add(self)
            self._arrival = min(self._arrival, next(budget.arrivals))
        return False

    def give_back(self, num_rows: int) -> None:
        """Returns rows, and lets this version and those that wait for rows retry, each in its turn."""
        budget = self._budget
        budget.free += num_rows
        self._held -= num_rows
        self._retry()
        while budget.waiting:
            first, free = min(budget.waiting, key=lambda share: share._turn), budget.free
            budget.waiting.remove(first)
            first._retry()
            if first not in budget.waiting:
                first._arrival = math.inf
            elif budget.free == free:  # its request does not fit yet, and no other goes first
                return
