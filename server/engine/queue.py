"""A queue in which clients take turns: deficit round robin, by expected rows x steps. Pure.

Clients take turns (Shreedhar and Varghese 1995). A client at its turn is served as long as its credit covers its oldest
request; otherwise it earns a quantum for its next turn. So clients that always have requests waiting get the same work
done, however much they ask for at once; a client that asks for little waits for one turn of the others at most.
"""

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from attendant.server.engine.request import EngineRequest

MAX_OLD = 64


class TimerQueue:
    """A heap of keys by time. Keys that ended before their times are removed now and then."""

    def __init__(self, is_present: Callable[[int], bool]) -> None:
        """`is_present`: returns whether a key still matters."""
        self._is_present = is_present
        self._heap: list[tuple[float, int]] = []

    def add(self, time: float, key: int, num_present: int) -> None:
        """Adds a key; `num_present` is the number of keys that still matter."""
        heapq.heappush(self._heap, (time, key))
        # Keys that ended long before their times must not pile up.
        if len(self._heap) > 2 * num_present + MAX_OLD:
            self._heap = [entry for entry in self._heap if self._is_present(entry[1])]
            heapq.heapify(self._heap)

    @property
    def next_time(self) -> float:
        """Nothing is due before this time."""
        return self._heap[0][0] if self._heap else math.inf

    def due(self, now: float) -> list[int]:
        """Returns the keys whose time has come, each once."""
        keys: list[int] = []
        while self._heap and self._heap[0][0] <= now:
            _, key = heapq.heappop(self._heap)
            if self._is_present(key):
                keys.append(key)
        return keys


class Ahead(NamedTuple):
    """The requests that will be taken before a request that arrives now.

    Attributes:
        work: their expected rows x steps.
        num_requests: their approximate number.
        num_own: waiting requests of its own client.
    """

    work: float
    num_requests: float
    num_own: int


@dataclass(slots=True)
class _Client:
    """A client's waiting requests, in order of arrival, and their total work."""

    credit: float = 0.0
    requests: OrderedDict[int, EngineRequest] = field(default_factory=OrderedDict)
    work: float = 0.0

    @property
    def oldest(self) -> EngineRequest:
        return next(iter(self.requests.values()))


class FairQueue:
    """Waiting requests, by client.

    Attributes:
        work: expected rows x steps of all waiting requests.
    """

    def __init__(self) -> None:
        # The ring: the client whose turn it is comes first.
        self._clients: OrderedDict[str, _Client] = OrderedDict()
        self._client_of: dict[int, str] = {}
        self._starts = TimerQueue(self._client_of.__contains__)
        self.work = 0.0

    def __len__(self) -> int:
        return len(self._client_of)

    def __contains__(self, key: int) -> bool:
        return key in self._client_of

    def add(self, request: EngineRequest) -> None:
        """Appends a request to those of its client, and a new client to the ring."""
        client = self._clients.get(request.client)
        is_new = client is None
        if client is None:
            client = self._clients[request.client] = _Client()
        client.requests[request.key] = request
        client.work += request.work
        self.work += request.work
        self._client_of[request.key] = request.client
        if is_new:
            client.credit = self._quantum()
        if request.start_by is not None:
            self._starts.add(request.start_by, request.key, len(self))

    def put_back(self, request: EngineRequest) -> None:
        """Puts a request that was taken but not decoded before all others; its client does not pay for it."""
        self.add(request)
        client = self._clients[request.client]
        client.requests.move_to_end(request.key, last=False)
        client.credit += request.work
        self._clients.move_to_end(request.client, last=False)

    def remove(self, key: int) -> EngineRequest | None:
        """Removes a request whose caller has gone; returns None if it is not here."""
        name = self._client_of.pop(key, None)
        if name is None:
            return None
        client = self._clients[name]
        request = client.requests.pop(key)
        client.work -= request.work
        self.work -= request.work
        if not client.requests:
            del self._clients[name]
        if not self._clients:
            self.work = 0.0  # without rounding errors
        return request

    def first(self) -> EngineRequest | None:
        """Returns the request whose turn it is, or None if none waits."""
        if not self._clients:
            return None
        quantum = self._quantum()
        while True:
            name, client = next(iter(self._clients.items()))
            if client.credit >= client.oldest.work:
                return client.oldest
            client.credit += quantum
            self._clients.move_to_end(name)

    def take(self, request: EngineRequest) -> None:
        """Removes a request that will be decoded: its client pays for it."""
        self._clients[request.client].credit -= request.work
        self.remove(request.key)

    def missed(self, now: float) -> list[int]:
        """Returns the keys, each once, of requests that can't be answered before their deadlines any more."""
        return self._starts.due(now)

    def num_of(self, client: str) -> int:
        """Returns the number of waiting requests of this client."""
        mine = self._clients.get(client)
        return 0 if mine is None else len(mine.requests)

    def ahead(self, client: str, work: float) -> Ahead:
        """Returns what is taken before a request of this client that arrives now.

        That is all of the client's waiting requests, and of every other client as much work, or what it has.
        """
        mine = self._clients.get(client)
        work_ahead, num_own = 0.0 if mine is None else mine.work, self.num_of(client)
        turn, num_ahead = work_ahead + work, float(num_own)
        for other in self._clients.values():
            if other is not mine and other.work:
                part = min(1.0, turn / other.work)
                work_ahead += part * other.work
                num_ahead += part * len(other.requests)
        return Ahead(work_ahead, num_ahead, num_own)

    def _quantum(self) -> float:
        """Returns the credit that a turn earns: the mean work of those waiting, so that one turn pays for most."""
        return self.work / len(self)
