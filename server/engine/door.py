"""Who is let in: what a request will cost and when it would be answered, estimated before it costs anything. Pure.

A request that can't be answered before its deadline is refused at once, and so is one whose turn would come later than
is useful. Who is let in is told by when it must have begun; the queues drop what has not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from attendant.runtime.decoding.options import DecodingOptions
from attendant.server.engine.queueing.fair_queue import Ahead
from attendant.server.engine.queueing.lengths import Lengths
from attendant.server.engine.request import MIN_RETRY_SECONDS, EngineRequest, Outcome, Priority, Result
from attendant.server.engine.throughput import Pace
from attendant.server.errors import (
    ClientLimit,
    DeadlineExceeded,
    DeadlineTooShort,
    OutOfTime,
    QueueFull,
    WaitTooLong,
)

LIGHT_ROWS = 16
"""Rows that a client may have in flight before its requests count as heavy: a step with so many more rows takes little
longer for the requests of others beside them. A heavy client becomes light again at half of that: else its requests
would be stepped as two batches that take turns."""

FILL = 0.5
"""The part of what its deadline leaves that a request may be expected to wait: waits vary, and estimates are rough."""

GENEROSITY = 2.0
"""A request that nobody is in the way of is tried if its deadline leaves it this part of the expected time."""

MEMORY = 64
"""Answers that a correction is made of, about."""

MAX_FACTOR = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorLimits:
    """What may be in, besides what fits into the engine's batches.

    Attributes:
        max_waiting: interactive requests that may wait. A client may have as many of them as there is room left: one
            client alone fills half of the queue, and another one always finds room.
        max_wait_seconds: a request that is expected to wait longer is refused.
        max_client_requests, max_client_rows: interactive requests, and their rows, that a client may have in flight;
            None: as many as it likes.
    """

    max_waiting: int
    max_wait_seconds: float
    max_client_requests: int | None = None
    max_client_rows: int | None = None


class Prediction(NamedTuple):
    """What was expected of an interactive request, and what became of it.

    Attributes:
        expected_seconds, seconds: from submission to the answer; of a late one, until it was given up.
        expected_steps, steps: decoder steps; 0 steps for a late one.
        late: it was let in, and not answered before its deadline.
    """

    expected_seconds: float
    seconds: float
    expected_steps: float
    steps: int
    late: bool


@dataclass(frozen=True, slots=True)
class Entry:
    """A request that has been let in.

    Attributes:
        expected_seconds: until its answer.
        uncorrected_seconds: the same, before the correction.
    """

    request: EngineRequest
    expected_seconds: float = 0.0
    uncorrected_seconds: float = 0.0


@dataclass(slots=True)
class _Client:
    num_requests: int = 0
    num_rows: int = 0
    num_heavy: int = 0


class _Correction:
    """What answers take over what was expected of them: whatever the estimate knows nothing of is in it.

    Attributes:
        factor: a moving average; no answer counts for more than MAX_FACTOR, nor for less than its inverse.
    """

    def __init__(self) -> None:
        self.factor = 1.0

    def note(self, expected: float, taken: float) -> None:
        ratio = min(max(taken / expected, 1 / MAX_FACTOR), MAX_FACTOR)
        self.factor += (ratio - self.factor) / MEMORY


class Engines(Protocol):
    """What a door has to know of the engines behind it.

    Attributes:
        num_engines: that share the queue.
        max_rows: of each, that may be stepped together.
        pace: of one engine.
    """

    num_engines: int
    max_rows: int
    pace: Pace

    def num_waiting(self, priority: Priority) -> int:
        """Requests of that priority that have no rows yet."""

    def ahead(self, priority: Priority, client: str, work: float) -> Ahead:
        """What waits before a request of so many expected rows x steps of this client."""


class Door:
    """A model's: it knows what is in, and what that was expected to take."""

    def __init__(self, engines: Engines, limits: DoorLimits, on_prediction: Callable[[Prediction], None]) -> None:
        """`on_prediction`: called with what became of each interactive request that was answered, or came too late."""
        self._engines = engines
        self._limits = limits
        self._on_prediction = on_prediction
        self._lengths = Lengths()
        self._corrections = {priority: _Correction() for priority in Priority}
        self._clients: dict[str, _Client] = {}
        self._rows = dict.fromkeys(Priority, 0)

    def enter(
        self,
        key: int,
        source_ids: Sequence[int],
        options: DecodingOptions,
        priority: Priority,
        client: str,
        now: float,
        timeout_seconds: float | None,
        *,
        streams: bool = False,
    ) -> Entry:
        """Lets a request in.

        Raises:
            QueueFull, WaitTooLong, ClientLimit, DeadlineTooShort: of an interactive request.
        """
        steps = self._lengths.expected(len(source_ids), options)
        deadline = None if timeout_seconds is None else now + timeout_seconds
        request = EngineRequest(
            key, tuple(source_ids), options, now, deadline, priority, client, steps, streams=streams
        )
        entry = Entry(request) if priority is Priority.BULK else self._admitted(request)
        self._count(entry.request, 1)
        return entry

    def leave(self, entry: Entry, outcome: Outcome | None, now: float) -> None:
        """A request has ended; None: its caller has gone."""
        request = entry.request
        self._count(request, -1)
        if isinstance(outcome, Result):
            stats = outcome.stats
            self._lengths.note(len(request.source_ids), request.options, stats.steps)
            self._learn(entry, stats.total, stats.steps, late=False)
        # gRPC may notice a deadline before the engine does: its caller has gone then.
        elif isinstance(outcome, DeadlineExceeded | OutOfTime) or (
            outcome is None and request.deadline is not None and now >= request.deadline
        ):
            self._learn(entry, now - request.submitted, 0, late=True)

    def _admitted(self, request: EngineRequest) -> Entry:
        limits, engines = self._limits, self._engines
        mine = self._clients.get(request.client, _Client())
        if mine.num_rows + request.max_rows > (LIGHT_ROWS // 2 if mine.num_heavy else LIGHT_ROWS):
            request = request._replace(priority=Priority.HEAVY)
        ahead = engines.ahead(request.priority, request.client, request.work)
        correction = self._corrections[request.priority].factor
        waiting = engines.pace.seconds(ahead.work, ahead.num_requests, engines.max_rows) / engines.num_engines
        decoding = self._decoding_seconds(request)
        wait, service = waiting * correction, decoding * correction
        self._check_client(mine, request, wait + service)
        num_waiting = engines.num_waiting(Priority.INTERACTIVE) + engines.num_waiting(Priority.HEAVY)
        if num_waiting + ahead.num_own >= limits.max_waiting:
            raise QueueFull(num_waiting, ahead.num_own, max(wait / 2, MIN_RETRY_SECONDS))
        if wait > limits.max_wait_seconds:
            raise WaitTooLong(wait, limits.max_wait_seconds)
        if request.deadline is not None:
            request = self._in_time(request, request.deadline - request.submitted, wait, service)
        return Entry(request, wait + service, waiting + decoding)

    def _in_time(self, request: EngineRequest, remaining: float, wait: float, service: float) -> EngineRequest:
        """The request, knowing when it must begin, if it can be answered before its deadline."""
        assert request.deadline is not None
        if remaining > 0 and wait / FILL + service <= remaining:
            return request._replace(start_by=request.deadline - service)
        if remaining > 0 and not any(self._rows.values()) and service <= GENEROSITY * remaining:
            return request
        raise DeadlineTooShort(remaining, max(wait + service, MIN_RETRY_SECONDS))

    def _check_client(self, mine: _Client, request: EngineRequest, expected_seconds: float) -> None:
        checks = (
            ("requests", mine.num_requests + 1, self._limits.max_client_requests),
            ("rows", mine.num_rows + request.max_rows, self._limits.max_client_rows),
        )
        for what, num, limit in checks:
            if limit is not None and num > limit:
                raise ClientLimit(num, what, limit, max(expected_seconds, MIN_RETRY_SECONDS))

    def _decoding_seconds(self, request: EngineRequest) -> float:
        """Of encoding and stepping, beside those that are in."""
        engines, pace = self._engines, self._engines.pace
        beside = self._rows[request.priority] / engines.num_engines
        rows = min(engines.max_rows, beside + request.max_rows, pace.peak_rows + request.max_rows)
        return pace.encode_seconds + request.expected_steps * pace.step_seconds(rows)

    def _learn(self, entry: Entry, seconds: float, steps: int, *, late: bool) -> None:
        if entry.request.priority is Priority.BULK:
            return
        correction = self._corrections[entry.request.priority]
        # How long a late one would have taken is not known: it only counts where that is longer than expected already.
        if entry.uncorrected_seconds and (not late or seconds > entry.expected_seconds):
            correction.note(entry.uncorrected_seconds, seconds)
        expected = entry.request.expected_steps
        self._on_prediction(Prediction(entry.expected_seconds, seconds, expected, steps, late))

    def _count(self, request: EngineRequest, sign: int) -> None:
        self._rows[request.priority] += sign * request.max_rows
        if request.priority is Priority.BULK:
            return
        client = self._clients.setdefault(request.client, _Client())
        client.num_requests += sign
        client.num_rows += sign * request.max_rows
        client.num_heavy += sign * (request.priority is Priority.HEAVY)
        if not client.num_requests:
            del self._clients[request.client]
