"""Which worker process decodes which request. Pure.

There is one queue of a priority for all workers, by client as in every engine. An interactive or heavy request goes to
the worker with the fewest rows reserved by its like, as soon as one has room: several small batches on several cores
answer sooner than a large one on one. Bulk requests, whose number is limited, go at once to the worker with the fewest
of their rows: it can choose among them, and need not ask for more. Rows are the server's (shared_rows.py). While no
worker is open, everything waits.

A step takes longer, the more rows take part, and newcomers hold it up while they are encoded. Requests of many steps,
which are answered last, suffer most from both. So short requests keep away from them: where a worker is chosen for one,
the rows of long requests count several times. Where all are equally long, none is.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from attendant.server.engine.averaging import averaged
from attendant.server.engine.queueing.fair_queue import Ahead, FairQueue
from attendant.server.engine.remote.shared_rows import RESERVED, SharedRows
from attendant.server.engine.request import EngineRequest, Priority

Given = list[tuple[int, EngineRequest]]
"""What is to be sent, and to which worker."""

LONG_FACTOR: Final = 1.5
"""A request is long if it is expected to take more than so many times the mean steps."""

LONG_ROW_WEIGHT: Final = 3
"""So many rows does one of a long request count as, where a worker is chosen for a short one."""

MEAN_WEIGHT: Final = 0.02
"""Of a request, in the moving average of the steps that requests are expected to take."""


@dataclass(slots=True)
class _Load:
    """What a worker has of a priority.

    Attributes:
        rows: of its requests.
        long: of those that are long, by key.
    """

    rows: int = 0
    long: dict[int, int] = field(default_factory=dict)

    @property
    def weight(self) -> int:
        """What counts where a worker is chosen for a short request."""
        return self.rows + (LONG_ROW_WEIGHT - 1) * sum(self.long.values())


class Dispatcher:
    """The queues, and how many rows each worker has been given."""

    def __init__(
        self,
        num_workers: int,
        max_rows: int,
        shared: SharedRows | None = None,
        on_room: Callable[[], None] = lambda: None,
        on_bulk: Callable[[int, bool], None] = lambda num_dispatchers, is_alone: None,
    ) -> None:
        """No worker is open yet.

        Args:
            max_rows: of each priority but bulk, of each worker.
            shared: the rows of all dispatchers in the server; None: this one is alone.
            on_room: called when others have given back rows that were waited for here; `next` says what can be sent.
            on_bulk: called with the number of dispatchers whose workers have bulk requests, where this is one of them,
                and whether these are alone; whenever either changes.
        """
        self._shared = shared or SharedRows(num_workers * max_rows)
        self._shares = {priority: self._shared.share(priority, on_room) for priority in RESERVED}
        self._on_bulk, self._has_bulk = on_bulk, False
        self._num_workers, self._max_rows = num_workers, max_rows
        self._open: list[int] = []
        self._waiting = {priority: FairQueue() for priority in Priority}
        self._loads = {priority: [_Load() for _ in range(num_workers)] for priority in Priority}
        self._mean_steps: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether any worker is."""
        return bool(self._open)

    def num_waiting(self, priority: Priority) -> int:
        """Requests that no worker has room for."""
        return len(self._waiting[priority])

    def ahead(self, priority: Priority, client: str, work: float) -> Ahead:
        """What waits before a request of so many expected rows x steps; `num_own` counts light and heavy ones."""
        num_own = sum([self._waiting[kind].num_of(client) for kind in RESERVED])
        ahead = self._waiting[priority].ahead(client, work)
        return Ahead(ahead.work, ahead.num_requests, num_own)

    def missed(self, now: float) -> list[EngineRequest]:
        """Takes out those that wait and can't be answered before their deadlines any more."""
        return [
            request
            for queue in self._waiting.values()
            for key in queue.missed(now)
            if (request := queue.remove(key)) is not None
        ]

    def look(self, now: float) -> None:
        """Time has passed: see SharedRows."""
        self._shared.look(now)

    def open(self, worker: int) -> Given:
        """A worker takes requests from now on; returns what is to be sent now."""
        self._open.append(worker)
        return self.next()

    def close(self, worker: int) -> None:
        """A worker is given nothing more, and what it had counts no longer."""
        if worker in self._open:
            self._open.remove(worker)
        for priority, loads in self._loads.items():
            self._free(priority, loads[worker].rows)
            loads[worker] = _Load()
        self._offer()

    def add(self, request: EngineRequest) -> Given:
        """Takes a request in; returns what is to be sent now."""
        if request.priority is not Priority.BULK:
            self._shared.asked(request.submitted)
        queue = self._waiting[request.priority]
        # Where nobody waits it is this one's turn: the queue would give it back, and forget its client.
        if not queue and self._open and self._takes(request.priority, request.max_rows):
            worker = self._give(request)
            self._note_bulk()
            return [(worker, request)]
        queue.add(request)
        return self.next()

    def take_back(self, requests: Iterable[EngineRequest]) -> Given:
        """Takes in again, before all others, what a closed worker had; returns the same."""
        for request in sorted(requests, key=lambda one: one.key, reverse=True):
            self._waiting[request.priority].put_back(request)
        return self.next()

    def cancel(self, key: int) -> bool:
        """Nobody waits for this request any more; False: it does not wait here."""
        return any(queue.remove(key) is not None for queue in self._waiting.values())

    def ended(self, worker: int, requests: Iterable[EngineRequest]) -> Given:
        """Requests that the worker had have ended; returns what is to be sent in their place."""
        for request in requests:
            load = self._loads[request.priority][worker]
            load.rows -= request.max_rows
            load.long.pop(request.key, None)
            self._free(request.priority, request.max_rows)
        given = self.next()
        self._offer()
        return given

    def clear(self) -> None:
        """Nothing waits any more, and the workers have nothing: they have been let go."""
        self._waiting = {priority: FairQueue() for priority in Priority}
        for worker in range(self._num_workers):
            self.close(worker)

    def next(self) -> Given:
        """What is to be sent now."""
        sent: Given = []
        for priority, queue in self._waiting.items():
            # The request whose turn it is is waited for until it fits, so that it does not starve behind smaller ones.
            while self._open and (request := queue.first()) is not None and self._takes(priority, request.max_rows):
                queue.take(request.key)
                sent.append((self._give(request), request))
        self._note_bulk()
        return sent

    def _takes(self, priority: Priority, num_rows: int) -> bool:
        """Whether a worker has room for so many rows, and the server had them, which are taken now."""
        if priority is Priority.BULK:
            return True
        return bool(self._with_room(priority, num_rows)) and self._shares[priority].take(num_rows)

    def _with_room(self, priority: Priority, num_rows: int) -> list[int]:
        """The open workers that may be given so many rows more."""
        loads = self._loads[priority]
        return [worker for worker in self._open if loads[worker].rows + num_rows <= self._max_rows]

    def _free(self, priority: Priority, num_rows: int) -> None:
        if priority is not Priority.BULK:
            self._shares[priority].give_back(num_rows)

    def _give(self, request: EngineRequest) -> int:
        loads, num_rows = self._loads[request.priority], request.max_rows
        if request.priority is Priority.BULK:
            worker = min(self._open, key=lambda one: loads[one].rows)
        else:
            self._mean_steps = averaged(self._mean_steps, request.expected_steps, MEAN_WEIGHT)
            with_room = self._with_room(request.priority, num_rows)
            if request.expected_steps > LONG_FACTOR * self._mean_steps:
                worker = min(with_room, key=lambda one: loads[one].rows)
                loads[worker].long[request.key] = num_rows
            else:
                worker = min(with_room, key=lambda one: loads[one].weight)
        loads[worker].rows += num_rows
        return worker

    def _offer(self) -> None:
        for share in self._shares.values():
            share.offer()
        self._note_bulk()

    def _note_bulk(self) -> None:
        has_bulk = any(load.rows for load in self._loads[Priority.BULK])
        if has_bulk != self._has_bulk:
            self._has_bulk = has_bulk
            self._shared.divide_bulk(self._on_bulk, has_bulk=has_bulk)
