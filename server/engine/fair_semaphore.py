"""A semaphore whose waiting clients take turns: what bounds the bulk requests of a model."""

import asyncio
from collections import OrderedDict, deque


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
