"""Room for the bulk requests of one engine: so many places, handed out in turn."""

import asyncio
from collections import OrderedDict, deque


class BulkRoom:
    """Clients take turns, and the streams of a client take turns within its own. Who asks alone may have all of it.

    A place is held while the engine has the request, and no longer: whoever does not read its answers keeps no place.
    So places come free as fast as the engine works, and a newcomer soon has as many as the others.

    Attributes:
        num_held: places that are taken now.
    """

    def __init__(self, num_places: int) -> None:
        self.num_places = num_places
        self.num_held = 0
        # Those that wait, by client; the client whose turn is next comes first. None of the queues is empty.
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def acquire(self, client: str = "") -> None:
        """Waits for a place.

        Args:
            client: in whose turn; whoever is told apart here by this name shares the room evenly with the others.
        """
        if self.num_held < self.num_places and not self._waiting:
            self.num_held += 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.cancelled():
                self._leave(client, place)
            else:  # it came just now
                self.release()
            raise

    def release(self) -> None:
        """Gives a place back: to whoever's turn it is."""
        self.num_held -= 1
        while self._waiting and self.num_held < self.num_places:
            client, queue = next(iter(self._waiting.items()))
            place = queue.popleft()
            if queue:
                self._waiting.move_to_end(client)
            else:
                del self._waiting[client]
            if not place.done():
                self.num_held += 1
                place.set_result(None)

    def _leave(self, client: str, place: asyncio.Future[None]) -> None:
        queue = self._waiting.get(client)
        if queue is not None and place in queue:
            queue.remove(place)
            if not queue:
                del self._waiting[client]
