"""Resources that clients, streams and models share: places for bulk requests, memory for answers, and rows."""

import asyncio
import itertools
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

from attendant.server.engine.request import Priority


class FairSemaphore:
    """Some permits. Clients take turns, and the streams of a client take turns within its own; one alone may have all.

    Attributes:
        num_permits: in all.
        num_held: of these, those that are taken now.
    """

    def __init__(self, num_permits: int) -> None:
        self.num_permits = num_permits
        self.num_held = 0
        # By client; the client whose turn is next comes first. None of the queues is empty.
        self._waiters: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def is_free(self) -> bool:
        """Whether `acquire` would not wait."""
        return self.num_held < self.num_permits and not self._waiters

    async def acquire(self, client: str = "") -> None:
        """Waits for a permit.

        Args:
            client: who asks. Clients of different names share the permits evenly.
        """
        if self.is_free:
            self.num_held += 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(client, deque()).append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                self._leave(client, waiter)
            else:  # its permit came just now
                self.release()
            raise

    def release(self) -> None:
        """Gives a permit back: to the client whose turn it is."""
        self.num_held -= 1
        while self._waiters and self.num_held < self.num_permits:
            client, queue = next(iter(self._waiters.items()))
            waiter = queue.popleft()
            if queue:
                self._waiters.move_to_end(client)
            else:
                del self._waiters[client]
            if not waiter.done():
                self.num_held += 1
                waiter.set_result(None)

    def _leave(self, client: str, waiter: asyncio.Future[None]) -> None:
        queue = self._waiters.get(client)
        if queue is not None and waiter in queue:
            queue.remove(waiter)
            if not queue:
                del self._waiters[client]


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


RESERVED = (Priority.INTERACTIVE, Priority.HEAVY)
"""The priorities whose requests are sent to a worker only once the server has rows for them."""

ALONE_SECONDS = 1.0
"""After which bulk work counts as alone, when nobody has asked for anything else, and nobody waits for an answer."""


class SharedRows:
    """The rows of a server. Each priority has a budget of its own, as it has in every engine."""

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._budgets = {priority: _Budget(max_rows) for priority in RESERVED}
        self._with_bulk: dict[Callable[[int, bool], None], None] = {}
        self._bulk_is_alone = False
        self._last_asked = -math.inf

    def share(self, priority: Priority, ask: Callable[[], None]) -> "RowShare":
        """A version's part of them; `ask`: called when it has waited for rows and may ask again."""
        return RowShare(self._budgets[priority], ask)

    def divide_bulk(self, tell: Callable[[int, bool], None], *, has_bulk: bool) -> None:
        """The workers of a version have bulk requests from now on, or have none any more.

        Args:
            tell: called, while they have some, with the number of versions of which that is true, and whether they are
                alone.
        """
        if has_bulk:
            self._with_bulk[tell] = None
        else:
            self._with_bulk.pop(tell, None)
        self._tell()

    def asked(self, now: float) -> None:
        """Somebody asks for something else than bulk work."""
        self._last_asked = now
        if self._bulk_is_alone:
            self._bulk_is_alone = False
            self._tell()

    def look(self, now: float) -> None:
        """Time has passed: bulk work may have come to be alone."""
        is_idle = all(budget.free == self._max_rows and not budget.waiting for budget in self._budgets.values())
        if not self._bulk_is_alone and is_idle and now - self._last_asked >= ALONE_SECONDS:
            self._bulk_is_alone = True
            self._tell()

    def _tell(self) -> None:
        for one in self._with_bulk:
            one(len(self._with_bulk), self._bulk_is_alone)


class _Budget:
    """The rows of one priority.

    Attributes:
        free: rows that no version holds.
        waiting: the shares that were refused rows.
        arrivals: numbers, by which these are told apart by when they began to wait.
    """

    def __init__(self, free: int) -> None:
        self.free = free
        self.waiting: set[RowShare] = set()
        self.arrivals = itertools.count()


class RowShare:
    """What one version holds.

    Attributes:
        held: rows of its requests that have been given to workers.
    """

    def __init__(self, budget: _Budget, ask: Callable[[], None]) -> None:
        self._budget = budget
        self._ask = ask
        # Of those that hold equally many, who has waited longest goes first.
        self._arrival = math.inf
        self.held = 0

    @property
    def _turn(self) -> tuple[int, float]:
        return self.held, self._arrival

    def take(self, num_rows: int) -> bool:
        """Takes so many rows; False: they are not free, or another version that waits goes first."""
        budget = self._budget
        if num_rows <= budget.free and (
            not budget.waiting or self._turn <= min(other._turn for other in budget.waiting)
        ):
            budget.waiting.discard(self)
            self._arrival = math.inf
            budget.free -= num_rows
            self.held += num_rows
            return True
        if self not in budget.waiting:
            budget.waiting.add(self)
            self._arrival = min(self._arrival, next(budget.arrivals))
        return False

    def give_back(self, num_rows: int) -> None:
        """Gives rows back, which `offer` then tells those that wait."""
        self._budget.free += num_rows
        self.held -= num_rows

    def offer(self) -> None:
        """Lets those that wait ask again, each in its turn; to be called after rows were given back."""
        budget = self._budget
        while budget.waiting:
            first, free = min(budget.waiting, key=lambda one: one._turn), budget.free
            budget.waiting.remove(first)
            first._ask()
            if first not in budget.waiting:
                first._arrival = math.inf
            elif budget.free == free:  # what it wants does not fit yet, and nobody goes before it
                return
