"""A queue in which clients take turns: deficit round robin, by expected rows x steps. Pure.

Clients take turns (Shreedhar and Varghese 1995). A client at its turn is served as long as its credit covers its oldest
request, and earns a quantum for its next turn when it does not. So clients that always have something waiting get the
same work done, however much they ask for at once; one that asks for little waits for one turn of the others at most.
"""

import heapq
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from attendant.server.engine.request import EngineRequest

MAX_OLD = 64


class TimerQueue:
    """A heap of keys by their times. Those that have ended before their times are removed now and then."""

    def __init__(self, has: Callable[[int], bool]) -> None:
        """`has`: whether a key still matters."""
        self._has = has
        self._heap: list[tuple[float, int]] = []

    def add(self, time: float, key: int, num_present: int) -> None:
        """`num_present`: keys that still matter, at most."""
        heapq.heappush(self._heap, (time, key))
        # Keys that ended long before their times must not pile up.
        if len(self._heap) > 2 * num_present + MAX_OLD:
            self._heap = [one for one in self._heap if self._has(one[1])]
            heapq.heapify(self._heap)

    @property
    def next_time(self) -> float:
        """Before it, nothing is due."""
        return self._heap[0][0] if self._heap else math.inf

    def due(self, now: float) -> list[int]:
        """The keys whose time has come, each returned once."""
        keys: list[int] = []
        while self._heap and self._heap[0][0] <= now:
            _, key = heapq.heappop(self._heap)
            if self._has(key):
                keys.append(key)
        return keys


class Ahead(NamedTuple):
    """What waits before a request that comes now.

    Attributes:
        work: expected rows x steps that will be admitted before it.
        num_requests: about how many requests that is.
        num_own: requests of its own client that wait here.
    """

    work: float
    num_requests: float
    num_own: int


@dataclass(slots=True)
class _Client:
    """What a client has waiting.

    Attributes:
        requests: in order of arrival, each with its place: how many of the client's are taken before it if none
            overtakes.
        num_taken: of this client, since it began to wait.
    """

    credit: float = 0.0
    requests: OrderedDict[int, tuple[EngineRequest, int]] = field(default_factory=OrderedDict)
    work: float = 0.0
    num_taken: int = 0


class FairQueue:
    """Waiting requests, by client.

    Attributes:
        work: expected rows x steps of all that wait.
    """

    def __init__(self) -> None:
        # The ring: the first one has its turn.
        self._clients: OrderedDict[str, _Client] = OrderedDict()
        self._client_of: dict[int, str] = {}
        self._starts = TimerQueue(self._client_of.__contains__)
        self.work = 0.0

    def __len__(self) -> int:
        return len(self._client_of)

    def __contains__(self, key: int) -> bool:
        return key in self._client_of

    @property
    def clients(self) -> list[str]:
        return list(self._clients)

    def add(self, request: EngineRequest) -> None:
        """Puts a request behind those of its client, and a client that had none behind the others."""
        client = self._clients.get(request.client)
        is_new = client is None
        if client is None:
            client = self._clients[request.client] = _Client()
        client.requests[request.key] = request, client.num_taken + len(client.requests)
        client.work += request.work
        self.work += request.work
        self._client_of[request.key] = request.client
        if is_new:
            client.credit = self._quantum()
        if request.start_by is not None:
            self._starts.add(request.start_by, request.key, len(self))

    def put_back(self, request: EngineRequest) -> None:
        """Puts a request that was taken, and not decoded, before all others; its client does not pay for it."""
        self.add(request)
        client = self._clients[request.client]
        client.requests[request.key] = request, client.num_taken
        client.requests.move_to_end(request.key, last=False)
        client.credit += request.work
        self._clients.move_to_end(request.client, last=False)

    def remove(self, key: int) -> EngineRequest | None:
        """Takes a request out that nobody waits for any more. None: not here."""
        name = self._client_of.pop(key, None)
        if name is None:
            return None
        client = self._clients[name]
        request, _ = client.requests.pop(key)
        client.work -= request.work
        self.work -= request.work
        if not client.requests:
            del self._clients[name]
        if not self._clients:
            self.work = 0.0  # and not what rounding has left
        return request

    def take(self, key: int) -> EngineRequest:
        """Takes a request out to be decoded: its client pays for it."""
        client = self._clients[self._client_of[key]]
        request = self.remove(key)
        assert request is not None
        client.credit -= request.work
        client.num_taken += 1
        return request

    def first(self) -> EngineRequest | None:
        """Whose turn it is. None: nobody waits."""
        if not self._clients:
            return None
        self._turn_to_who_can_pay()
        return _oldest(next(iter(self._clients.values())))

    def in_order(self) -> Iterator[tuple[EngineRequest, int]]:
        """The requests in the order of their turns, each with how many later ones of its client's were taken before it.

        As far as can be foreseen: what is taken or added changes it, and ends the iteration.
        """
        if not self._clients:
            return
        self._turn_to_who_can_pay()
        quantum = self._quantum()
        turns = deque(_Turn(client) for client in self._clients.values())
        while turns:
            turn = turns[0]
            request, place = turn.next
            if turn.credit < request.work:
                turn.credit += quantum
                turns.rotate(-1)
                continue
            yield request, turn.num_taken - place
            turn.credit -= request.work
            if not turn.advance():
                turns.popleft()

    def missed(self, now: float) -> list[int]:
        """The keys of those that had to begin by now, to be answered before their deadlines; each is told once."""
        return self._starts.due(now)

    def num_of(self, client: str) -> int:
        """Requests of this client that wait."""
        mine = self._clients.get(client)
        return 0 if mine is None else len(mine.requests)

    def ahead(self, client: str, work: float) -> Ahead:
        """What is taken before a request of this client that comes now.

        That is all of its own that wait, and of every other client as much work, or what it has.
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
        """What a turn earns: the mean work of those that wait, so that most are paid for in one turn."""
        return self.work / len(self)

    def _turn_to_who_can_pay(self) -> None:
        quantum = self._quantum()
        while True:
            name, client = next(iter(self._clients.items()))
            if client.credit >= _oldest(client).work:
                return
            client.credit += quantum
            self._clients.move_to_end(name)


class _Turn:
    """A client in turns that are only foreseen.

    Attributes:
        next: its oldest request that has not been foreseen, with its place.
    """

    __slots__ = ("_rest", "credit", "next", "num_taken")

    def __init__(self, client: _Client) -> None:
        self.credit, self.num_taken = client.credit, client.num_taken
        self._rest = iter(client.requests.values())
        self.next = next(self._rest)

    def advance(self) -> bool:
        """Whether there is another one."""
        following = next(self._rest, None)
        if following is not None:
            self.next = following
        return following is not None


def _oldest(client: _Client) -> EngineRequest:
    return next(iter(client.requests.values()))[0]
