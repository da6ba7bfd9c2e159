"""Overload control: accepts or refuses a request, by an estimate of when it would be answered. Pure.

A request that can't be answered before its deadline is refused at once, and so is one that would wait longer than is
useful. An accepted request carries the time by which it must have begun; the queues drop it if it has not. A list is
accepted or refused as a whole, by the estimate for its last request.
"""

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from attendant.runtime.decoding.options import DecodingOptions
from attendant.server import deadlines
from attendant.server.config import LIGHT_ROWS
from attendant.server.engine.estimates import Lengths, ThroughputEstimate
from attendant.server.engine.queue import Ahead
from attendant.server.engine.request import MIN_RETRY_SECONDS, EngineRequest, Outcome, Priority, Result
from attendant.server.errors import ClientLimit, DeadlineExceeded, DeadlineTooShort, OutOfTime, QueueFull, WaitTooLong

FILL = 0.5
"""A request may be expected to wait for this part of the time that its deadline leaves beside the decoding: waits vary,
and estimates are rough."""

GENEROSITY = 2.0
"""Where nothing runs, a request is tried although it is expected to take this many times what its deadline leaves."""

MEMORY = 64
"""Answers that a correction is made of, about."""

MAX_FACTOR = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OverloadLimits:
    """How many requests are accepted, beyond those that fit into the engine's batches.

    Attributes:
        max_waiting: interactive requests that may wait. A client may have as many of them as there is room left: one
            client alone fills half of the queue, and another one always finds room.
        max_wait_seconds: a request that is expected to wait longer is refused.
        max_client_requests, max_client_rows: interactive requests, and their rows, that a client may have in flight;
            None: as many as it likes.
        light_rows: that a client may have in flight before it is heavy.
    """

    max_waiting: int
    max_wait_seconds: float
    max_client_requests: int | None = None
    max_client_rows: int | None = None
    light_rows: int = LIGHT_ROWS


class Prediction(NamedTuple):
    """What was expected of an interactive request, and what became of it.

    Attributes:
        expected_seconds, seconds: from submission to the answer; of a late one, until it was given up.
        expected_steps, steps: decoder steps; 0 steps for a late one.
        late: it was accepted, and not answered before its deadline.
    """

    expected_seconds: float
    seconds: float
    expected_steps: float
    steps: int
    late: bool


Asked = tuple[tuple[int, ...], DecodingOptions]
"""A source, as the encoder takes it, and how it is decoded."""


@dataclass(slots=True)
class Accepted:
    """A request that has been accepted.

    Attributes:
        expected_seconds: until its answer; 0: not estimated, for it is one of a list and not the last.
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


NOBODY = _Client()
"""A client that has nothing in flight."""


class _Work:
    """What is asked for at once.

    Attributes:
        steps, rows: of each request, as expected and as reserved.
    """

    __slots__ = ("num_rows", "rows", "steps")

    def __init__(self, steps: list[float], rows: list[int]) -> None:
        self.steps, self.rows, self.num_rows = steps, rows, sum(rows)

    @property
    def total(self) -> float:
        """Rows x steps of all."""
        return float(sum(map(operator.mul, self.steps, self.rows)))

    @property
    def of_last(self) -> float:
        """Rows x steps of the last one."""
        return self.steps[-1] * self.rows[-1]


class _Decision(NamedTuple):
    """That requests are accepted: with which priority, and what is expected of the last of them.

    Attributes:
        start_within: seconds in which each must have been admitted to be answered before the deadline; None: any.
        expected_seconds, uncorrected_seconds: see Accepted.
    """

    priority: Priority
    start_within: float | None = None
    expected_seconds: float = 0.0
    uncorrected_seconds: float = 0.0


class _Correction:
    """The seconds that answers take, over those that were expected. It stands for all that the estimate leaves out.

    Attributes:
        factor: a moving average; no answer counts for more than MAX_FACTOR, nor for less than its inverse.
    """

    def __init__(self) -> None:
        self.factor = 1.0

    def note(self, expected: float, taken: float) -> None:
        ratio = min(max(taken / expected, 1 / MAX_FACTOR), MAX_FACTOR)
        self.factor += (ratio - self.factor) / MEMORY


class Engines(Protocol):
    """What overload control has to know of the engines.

    Attributes:
        num_engines: that share the queue.
        max_rows: of each, that may be stepped together.
        throughput: of one engine.
    """

    num_engines: int
    max_rows: int
    throughput: ThroughputEstimate

    def num_waiting(self, priority: Priority) -> int:
        """Requests of that priority that have no rows yet."""

    def ahead(self, priority: Priority, client: str, work: float) -> Ahead:
        """What waits before a request of so many expected rows x steps of this client."""


class OverloadControl:
    """Of one model: knows which requests are in its engines, and how long each was expected to take."""

    def __init__(self, engines: Engines, limits: OverloadLimits, on_prediction: Callable[[Prediction], None]) -> None:
        """`on_prediction`: called with what became of each interactive request that was answered, or came too late."""
        self._engines = engines
        self._limits = limits
        self._on_prediction = on_prediction
        self._lengths = Lengths()
        self._corrections = {priority: _Correction() for priority in Priority}
        self._clients: dict[str, _Client] = {}
        self._rows = dict.fromkeys(Priority, 0)

    def accept(
        self,
        keys: Iterable[int],
        asked: Sequence[Asked],
        priority: Priority,
        client: str,
        now: float,
        timeout_seconds: float | None,
        *,
        streams: bool = False,
    ) -> list[Accepted]:
        """Accepts a client's requests, all of them or none, by one decision.

        Args:
            keys: for the requests, as many as there are at least.
            asked: at least one.

        Raises:
            QueueFull, WaitTooLong, ClientLimit, DeadlineTooShort: of interactive requests.
        """
        expected = self._lengths.expected
        work = _Work(
            [expected(len(source_ids), options) for source_ids, options in asked],
            [options.max_rows for _, options in asked],
        )
        decision = _Decision(priority) if priority is Priority.BULK else self._decide(work, client, timeout_seconds)
        deadline = None if timeout_seconds is None else now + timeout_seconds
        start_by = None if decision.start_within is None else now + decision.start_within
        self._count(decision.priority, client, len(asked), work.num_rows)
        priority = decision.priority
        accepted = [
            Accepted(EngineRequest(key, source_ids, options, now, deadline, priority, client, steps, start_by, streams))
            for (source_ids, options), steps, key in zip(asked, work.steps, keys, strict=False)
        ]
        # The last one was estimated, and what becomes of it corrects the estimates.
        accepted[-1].expected_seconds = decision.expected_seconds
        accepted[-1].uncorrected_seconds = decision.uncorrected_seconds
        return accepted

    def ended(self, accepted: Accepted, outcome: Outcome | None, now: float) -> None:
        """A request has ended; None: its caller has gone."""
        request = accepted.request
        self._count(request.priority, request.client, -1, -request.max_rows)
        if isinstance(outcome, Result):
            self._lengths.note(len(request.source_ids), request.options, outcome.stats.steps)
            # And not the engine's own time: outcomes are held for a moment, and many are not delivered at once.
            self._learn(accepted, now - request.submitted, outcome.stats.steps, late=False)
        # Callers may notice their deadline before the engine does: they have gone then.
        elif isinstance(outcome, DeadlineExceeded | OutOfTime) or (
            outcome is None and request.deadline is not None and deadlines.has_passed(request.deadline - now)
        ):
            self._learn(accepted, now - request.submitted, 0, late=True)

    def _decide(self, work: _Work, client: str, timeout_seconds: float | None) -> _Decision:
        """Accepts interactive requests, or raises why not, by when the last of them would be answered."""
        limits, engines = self._limits, self._engines
        mine = self._clients.get(client, NOBODY)
        is_heavy = mine.num_rows + work.num_rows > (limits.light_rows // 2 if mine.num_heavy else limits.light_rows)
        priority = Priority.HEAVY if is_heavy else Priority.INTERACTIVE
        # Of a list too large for the rows that are free, a part waits: the last one for all others of that part.
        num_free = max(0, engines.num_engines * engines.max_rows - self._rows[priority])
        num_before = work_before = 0.0
        if num_free < work.num_rows:
            waiting_share = 1.0 - num_free / work.num_rows
            num_before = max(0.0, len(work.steps) * waiting_share - 1)
            work_before = max(0.0, work.total * waiting_share - work.of_last)
        ahead = engines.ahead(priority, client, work_before + work.of_last)
        waiting = engines.throughput.seconds(
            ahead.work + work_before, ahead.num_requests + num_before, engines.max_rows
        )
        waiting /= engines.num_engines
        decoding = self._decoding_seconds(priority, work)
        correction = self._corrections[priority].factor
        wait, service = waiting * correction, decoding * correction
        self._check_client(mine, work, wait + service)
        num_waiting = engines.num_waiting(Priority.INTERACTIVE) + engines.num_waiting(Priority.HEAVY)
        if num_waiting + ahead.num_own + 2 * num_before >= limits.max_waiting:
            raise QueueFull(num_waiting, ahead.num_own, max(wait / 2, MIN_RETRY_SECONDS))
        if wait > limits.max_wait_seconds:
            raise WaitTooLong(wait, limits.max_wait_seconds)
        start_within = None if timeout_seconds is None else self._start_within(timeout_seconds, wait, service)
        return _Decision(priority, start_within, wait + service, waiting + decoding)

    def _start_within(self, remaining: float, wait: float, service: float) -> float | None:
        """How soon what can be answered before its deadline must begin for that; None: it is only tried."""
        if remaining > 0 and wait / FILL + service <= remaining:
            return remaining - service
        if remaining > 0 and not any(self._rows.values()) and service <= GENEROSITY * remaining:
            return None
        raise DeadlineTooShort(remaining, max(wait + service, MIN_RETRY_SECONDS))

    def _check_client(self, mine: _Client, work: _Work, expected_seconds: float) -> None:
        checks = (
            ("requests", mine.num_requests + len(work.steps), self._limits.max_client_requests),
            ("rows", mine.num_rows + work.num_rows, self._limits.max_client_rows),
        )
        for what, num, limit in checks:
            if limit is not None and num > limit:
                raise ClientLimit(num, what, limit, max(expected_seconds, MIN_RETRY_SECONDS))

    def _decoding_seconds(self, priority: Priority, work: _Work) -> float:
        """Of encoding and stepping the last request, beside those that are in and those that come with it."""
        engines, throughput = self._engines, self._engines.throughput
        own = work.rows[-1]
        beside = (self._rows[priority] + work.num_rows - own) / engines.num_engines
        rows = min(engines.max_rows, beside + own, throughput.peak_rows + own)
        return throughput.encode_seconds + work.steps[-1] * throughput.step_seconds(rows)

    def _learn(self, accepted: Accepted, seconds: float, steps: int, *, late: bool) -> None:
        if accepted.request.priority is Priority.BULK:
            return
        correction = self._corrections[accepted.request.priority]
        # How long a late one would have taken is not known: it only counts where that is longer than expected already.
        if accepted.uncorrected_seconds and (not late or seconds > accepted.expected_seconds):
            correction.note(accepted.uncorrected_seconds, seconds)
        expected = accepted.request.expected_steps
        self._on_prediction(Prediction(accepted.expected_seconds, seconds, expected, steps, late))

    def _count(self, priority: Priority, client: str, num_requests: int, num_rows: int) -> None:
        self._rows[priority] += num_rows
        if priority is Priority.BULK:
            return
        if (mine := self._clients.get(client)) is None:
            mine = self._clients[client] = _Client()
        mine.num_requests += num_requests
        mine.num_rows += num_rows
        if priority is Priority.HEAVY:
            mine.num_heavy += num_requests
        if not mine.num_requests:
            del self._clients[client]
