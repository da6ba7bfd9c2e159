"""Which worker process decodes which request. Pure.

There is one queue for all workers. An interactive request goes to the worker with the fewest rows reserved by
interactive requests, as soon as one has room: several small batches on several cores answer sooner than a large one on
one. Bulk requests, of which a limited number is let in, go at once to the worker with the fewest of their rows: it can
choose among them, and need not ask for more.
"""

from collections import OrderedDict

from attendant.server.engine.request import EngineRequest, Priority


class Dispatcher:
    """The queue, and what each worker has been given."""

    def __init__(self, num_workers: int, max_rows: int) -> None:
        """`max_rows`: of interactive requests, of each worker."""
        self._max_rows = max_rows
        self._waiting: OrderedDict[int, EngineRequest] = OrderedDict()
        self._given: dict[int, tuple[EngineRequest, int]] = {}
        self._rows = {priority: [0] * num_workers for priority in Priority}

    @property
    def num_waiting(self) -> int:
        """Interactive requests that no worker has room for."""
        return len(self._waiting)

    def add(self, request: EngineRequest) -> list[tuple[int, EngineRequest]]:
        """Takes a request in; returns what is to be sent now, and to which worker."""
        if request.priority is Priority.BULK:
            return [(self._give(request), request)]
        self._waiting[request.key] = request
        return self._next()

    def cancel(self, key: int) -> int | None:
        """Nobody waits for this request any more; returns the worker that is to be told, if one has it."""
        if self._waiting.pop(key, None) is not None or key not in self._given:
            return None
        return self._given[key][1]

    def is_interactive(self, key: int) -> bool:
        """Of a request that a worker has."""
        return self._given[key][0].priority is Priority.INTERACTIVE

    def ended(self, keys: list[int]) -> list[tuple[int, EngineRequest]]:
        """Requests have ended; returns what is to be sent in their place."""
        for key in keys:
            request, worker = self._given.pop(key)
            self._rows[request.priority][worker] -= request.max_rows
        return self._next()

    def _next(self) -> list[tuple[int, EngineRequest]]:
        sent: list[tuple[int, EngineRequest]] = []
        rows = self._rows[Priority.INTERACTIVE]
        while self._waiting:
            request = next(iter(self._waiting.values()))
            # The oldest request is waited for until it fits, so that it does not starve behind smaller ones.
            if min(rows) + request.max_rows > self._max_rows:
                break
            del self._waiting[request.key]
            sent.append((self._give(request), request))
        return sent

    def _give(self, request: EngineRequest) -> int:
        rows = self._rows[request.priority]
        worker = rows.index(min(rows))
        rows[worker] += request.max_rows
        self._given[request.key] = request, worker
        return worker
