"""Which worker process decodes which request. Pure.

There is one queue of a priority for all workers, by client as in every engine. An interactive or heavy request goes to
the worker with the fewest rows reserved by its like, as soon as one has room: several small batches on several cores
answer sooner than a large one on one. Bulk requests, of which a limited number is let in, go at once to the worker with
the fewest of their rows: it can choose among them, and need not ask for more.
"""

from attendant.server.engine.queueing.fair_queue import Ahead, FairQueue
from attendant.server.engine.request import EngineRequest, Priority

Given = list[tuple[int, EngineRequest]]
"""What is to be sent, and to which worker."""


class Dispatcher:
    """The queues, and what each worker has been given."""

    def __init__(self, num_workers: int, max_rows: int) -> None:
        """`max_rows`: of each priority but bulk, of each worker."""
        self._max_rows = max_rows
        self._waiting = {priority: FairQueue() for priority in Priority}
        self._given: dict[int, tuple[EngineRequest, int]] = {}
        self._rows = {priority: [0] * num_workers for priority in Priority}

    def num_waiting(self, priority: Priority) -> int:
        """Requests that no worker has room for."""
        return len(self._waiting[priority])

    def ahead(self, priority: Priority, client: str, work: float) -> Ahead:
        """What waits before a request of so many expected rows x steps of this client."""
        return self._waiting[priority].ahead(client, work)

    def add(self, request: EngineRequest) -> Given:
        """Takes a request in; returns what is to be sent now."""
        if request.priority is Priority.BULK:
            return [(self._give(request), request)]
        self._waiting[request.priority].add(request)
        return self._next()

    def cancel(self, key: int) -> int | None:
        """Nobody waits for this request any more; returns the worker that is to be told, if one has it."""
        if any(queue.remove(key) for queue in self._waiting.values()) or key not in self._given:
            return None
        return self._given[key][1]

    def missed(self, now: float) -> list[EngineRequest]:
        """Takes out those that wait and can't be answered before their deadlines any more."""
        return [
            request
            for queue in self._waiting.values()
            for key in queue.missed(now)
            if (request := queue.remove(key)) is not None
        ]

    def ended(self, keys: list[int]) -> Given:
        """Requests have ended; returns what is to be sent in their place."""
        for key in keys:
            request, worker = self._given.pop(key)
            self._rows[request.priority][worker] -= request.max_rows
        return self._next()

    def _next(self) -> Given:
        sent: Given = []
        for priority, queue in self._waiting.items():
            # The request whose turn it is is waited for until it fits, so that it does not starve behind smaller ones.
            while (request := queue.first()) and min(self._rows[priority]) + request.max_rows <= self._max_rows:
                queue.take(request.key)
                sent.append((self._give(request), request))
        return sent

    def _give(self, request: EngineRequest) -> int:
        rows = self._rows[request.priority]
        worker = rows.index(min(rows))
        rows[worker] += request.max_rows
        self._given[request.key] = request, worker
        return worker
