"""Which worker process decodes which request. Pure.

There is one queue for all workers. An interactive request goes to the worker with the fewest rows reserved by
interactive requests, as soon as one has room: several small batches on several cores answer sooner than a large one on
one. Bulk requests, of which a limited number is let in, go at once to the worker with the fewest of their rows: it can
choose among them, and need not ask for more. While no worker is open, everything waits.
"""

from collections import OrderedDict
from collections.abc import Iterable

from attendant.server.engine.request import EngineRequest, Priority


class Dispatcher:
    """The queue, and how many rows each worker has been given."""

    def __init__(self, num_workers: int, max_rows: int) -> None:
        """No worker is open yet; `max_rows`: of interactive requests, of each worker."""
        self._max_rows = max_rows
        self._open: list[int] = []
        self._waiting: dict[Priority, OrderedDict[int, EngineRequest]] = {one: OrderedDict() for one in Priority}
        self._rows = {priority: [0] * num_workers for priority in Priority}

    @property
    def is_open(self) -> bool:
        """Whether any worker is."""
        return bool(self._open)

    def num_waiting(self, priority: Priority) -> int:
        """Requests that no worker has room for."""
        return len(self._waiting[priority])

    def open(self, worker: int) -> list[tuple[int, EngineRequest]]:
        """A worker takes requests from now on; returns what is to be sent now, and to which worker."""
        self._open.append(worker)
        return self._next()

    def close(self, worker: int) -> None:
        """A worker is given nothing more, and what it had counts no longer."""
        if worker in self._open:
            self._open.remove(worker)
        for rows in self._rows.values():
            rows[worker] = 0

    def add(self, request: EngineRequest) -> list[tuple[int, EngineRequest]]:
        """Takes a request in; returns what is to be sent now, and to which worker."""
        self._waiting[request.priority][request.key] = request
        return self._next()

    def take_back(self, requests: Iterable[EngineRequest]) -> list[tuple[int, EngineRequest]]:
        """Takes in again, before all others, what a closed worker had; returns the same."""
        for request in sorted(requests, key=lambda one: one.key, reverse=True):
            waiting = self._waiting[request.priority]
            waiting[request.key] = request
            waiting.move_to_end(request.key, last=False)
        return self._next()

    def cancel(self, key: int) -> bool:
        """Nobody waits for this request any more; False: it does not wait here."""
        return any(waiting.pop(key, None) is not None for waiting in self._waiting.values())

    def ended(self, worker: int, requests: Iterable[EngineRequest]) -> list[tuple[int, EngineRequest]]:
        """Requests that the worker had have ended; returns what is to be sent in their place."""
        for request in requests:
            self._rows[request.priority][worker] -= request.max_rows
        return self._next()

    def clear(self) -> None:
        """Nothing waits any more: there will be no worker for it."""
        for waiting in self._waiting.values():
            waiting.clear()

    def _next(self) -> list[tuple[int, EngineRequest]]:
        sent: list[tuple[int, EngineRequest]] = []
        if not self._open:
            return sent
        interactive, bulk = (self._waiting[priority] for priority in Priority)
        rows = self._rows[Priority.INTERACTIVE]
        while interactive:
            request = next(iter(interactive.values()))
            # The oldest request is waited for until it fits, so that it does not starve behind smaller ones.
            if min(rows[worker] for worker in self._open) + request.max_rows > self._max_rows:
                break
            del interactive[request.key]
            sent.append((self._give(request), request))
        while bulk:
            _, request = bulk.popitem(last=False)
            sent.append((self._give(request), request))
        return sent

    def _give(self, request: EngineRequest) -> int:
        rows = self._rows[request.priority]
        worker = min(self._open, key=rows.__getitem__)
        rows[worker] += request.max_rows
        return worker
