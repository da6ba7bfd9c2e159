"""Overload control: accepts or refuses a request, by an estimate of when it would be answered. Pure.

A request that can't be answered before its deadline is refused at once, and so is one that would wait too long. An
accepted request carries the time by which it must have begun; the queues drop it if it has not. A list is accepted or
refused as a whole, by the estimate for its last request.
"""

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from attendant.runtime.decoding.options import DecodingOptions
from attendant.server.config import ServerConfig
from attendant.server.engine.estimates import Lengths, MovingAverage
from attendant.server.engine.pool import WorkerPool
from attendant.server.engine.request import MIN_RETRY_SECONDS, EngineRequest, Outcome, Priority, Result
from attendant.server.errors import (
    ClientLimit,
    DeadlineExceeded,
    DeadlineTooShort,
    OutOfTime,
    QueueFull,
    WaitTooLong,
    deadline_has_passed,
)

FILL = 0.5
"""A request may be expected to wait for this part of the time that its deadline leaves beyond the decoding. Waits vary,
and estimates are rough."""

IDLE_DEADLINE_SLACK = 2.0
"""While nothing runs, a request is tried even if it is expected to take this many times the time until its deadline."""

CORRECTION_WEIGHT = 1 / 64
MAX_CORRECTION = 4.0
"""An answer corrects the estimates by at most this factor, or its inverse."""


class Prediction(NamedTuple):
    """The expectation for an interactive request, and its end.

    Attributes:
        expected_seconds, seconds: from submission to the answer, or until a late request was given up.
        expected_steps, steps: decoder steps; `steps` is 0 for a late request.
        late: whether it was accepted, and not answered before its deadline.
    """

    expected_seconds: float
    seconds: float
    expected_steps: float
    steps: int
    late: bool


Source = tuple[tuple[int, ...], DecodingOptions]
"""A source, as the encoder takes it, and its decoding options."""


class Accepted(NamedTuple):
    """A request that has been accepted.

    Attributes:
        expected_seconds: until its answer; 0 if not estimated: the request belongs to a list and is not its last.
        uncorrected_seconds: the same, before the correction.
    """

    request: EngineRequest
    expected_seconds: float = 0.0
    uncorrected_seconds: float = 0.0


@dataclass(slots=True)
class _Client:
    """A client's interactive requests in flight."""

    num_requests: int = 0
    num_rows: int = 0
    num_heavy: int = 0


NO_REQUESTS = _Client()


class OverloadControl:
    """Overload control of one model: counts the requests in flight, and learns how long answers take."""

    def __init__(self, pool: WorkerPool, config: ServerConfig, on_prediction: Callable[[Prediction], None]) -> None:
        """`on_prediction`: called for each interactive request that was answered, or came too late."""
        self._pool = pool
        self._config = config
        self._on_prediction = on_prediction
        self._lengths = Lengths()
        # Seconds that answers take, over those that were expected: all that the estimate leaves out.
        self._corrections = {priority: MovingAverage(CORRECTION_WEIGHT, 1.0) for priority in Priority}
        self._clients: dict[str, _Client] = {}
        self._rows = dict.fromkeys(Priority, 0)

    def accept(
        self,
        keys: Iterable[int],
        sources: Sequence[Source],
        priority: Priority,
        client: str,
        now: float,
        timeout_seconds: float | None,
        *,
        streams: bool = False,
    ) -> list[Accepted]:
        """Accepts a client's requests, all of them or none.

        Args:
            keys: for the requests; at least as many as there are.
            sources: at least one.

        Raises:
            QueueFull, WaitTooLong, ClientLimit, DeadlineTooShort: of interactive requests.
        """
        rows = [options.max_rows for _, options in sources]
        steps = [self._lengths.expected(len(source_ids), options) for source_ids, options in sources]
        expected, uncorrected, start_within = 0.0, 0.0, None
        if priority is not Priority.BULK:
            priority = self._priority(client, sum(rows))
            expected, uncorrected, start_within = self._estimate(client, priority, rows, steps, timeout_seconds)
        self._count(priority, client, len(rows), sum(rows))
        deadline = None if timeout_seconds is None else now + timeout_seconds
        start_by = None if start_within is None else now + start_within
        requests = [
            EngineRequest(key, source_ids, options, now, deadline, priority, client, num_steps, start_by, streams)
            for (source_ids, options), num_steps, key in zip(sources, steps, keys, strict=False)
        ]
        # The last one was estimated, and its outcome corrects the estimates.
        return [*map(Accepted, requests[:-1]), Accepted(requests[-1], expected, uncorrected)]

    def ended(self, accepted: Accepted, outcome: Outcome | None, now: float) -> None:
        """Learns from a request that has ended; the outcome is None if its caller has gone."""
        request = accepted.request
        self._count(request.priority, request.client, -1, -request.max_rows)
        if isinstance(outcome, Result):
            self._lengths.note(len(request.source_ids), request.options, outcome.stats.steps)
            # Not the engine's own time: outcomes are held for a moment, and many are not delivered at once.
            self._learn(accepted, now - request.submitted, outcome.stats.steps, late=False)
        # Callers may notice their deadline, and go, before the engine does.
        elif isinstance(outcome, DeadlineExceeded | OutOfTime) or (
            outcome is None and request.deadline is not None and deadline_has_passed(request.deadline - now)
        ):
            self._learn(accepted, now - request.submitted, 0, late=True)

    def _priority(self, client: str, num_rows: int) -> Priority:
        """Returns whether a client that asks for `num_rows` rows more is light or heavy."""
        mine, limit = self._clients.get(client, NO_REQUESTS), self._config.light_rows
        is_heavy = mine.num_rows + num_rows > (limit // 2 if mine.num_heavy else limit)
        return Priority.HEAVY if is_heavy else Priority.INTERACTIVE

    def _estimate(
        self,
        client: str,
        priority: Priority,
        rows: Sequence[int],
        steps: Sequence[float],
        timeout_seconds: float | None,
    ) -> tuple[float, float, float | None]:
        """Estimates when the last of a client's interactive requests would be answered, or raises why they are refused.

        Args:
            rows, steps: of each request, the largest number of rows and the expected number of steps.

        Returns:
            The seconds until that answer, the same before the correction, and the seconds within which each request
            must have been admitted to be answered before the deadline (None if at any time).
        """
        config, pool, throughput = self._config, self._pool, self._pool.throughput
        num_rows, last_work = sum(rows), rows[-1] * steps[-1]
        # Of a list too large for the free rows, a part waits: the last request for all others of that part.
        num_free = max(0, pool.num_engines * pool.max_rows - self._rows[priority])
        num_before = work_before = 0.0
        if num_free < num_rows:
            waiting_share = 1.0 - num_free / num_rows
            num_before = max(0.0, len(rows) * waiting_share - 1)
            work_before = max(0.0, sum(map(operator.mul, rows, steps)) * waiting_share - last_work)
        ahead = pool.ahead(priority, client, work_before + last_work)
        waiting = throughput.seconds(ahead.work + work_before, ahead.num_requests + num_before, pool.max_rows)
        waiting /= pool.num_engines
        # The last request is encoded, and stepped together with those that are in and those that come with it.
        beside = (self._rows[priority] + num_rows - rows[-1]) / pool.num_engines
        step_rows = min(pool.max_rows, beside + rows[-1], throughput.peak_rows + rows[-1])
        decoding = throughput.encode_seconds + steps[-1] * throughput.step_seconds(step_rows)
        correction = self._corrections[priority].value
        wait, service = waiting * correction, decoding * correction
        self._check_client(client, len(rows), num_rows, wait + service)
        num_waiting = pool.num_waiting(Priority.INTERACTIVE) + pool.num_waiting(Priority.HEAVY)
        if num_waiting + ahead.num_own + 2 * num_before >= config.max_waiting:
            raise QueueFull(num_waiting, ahead.num_own, max(wait / 2, MIN_RETRY_SECONDS))
        if wait > config.max_wait_seconds:
            raise WaitTooLong(wait, config.max_wait_seconds)
        start_within = None if timeout_seconds is None else self._start_within(timeout_seconds, wait, service)
        return wait + service, waiting + decoding, start_within

    def _start_within(self, remaining: float, wait: float, service: float) -> float | None:
        """Returns the seconds within which a request must begin to meet its deadline; None if it is only tried."""
        if remaining > 0 and wait / FILL + service <= remaining:
            return remaining - service
        if remaining > 0 and not any(self._rows.values()) and service <= IDLE_DEADLINE_SLACK * remaining:
            return None
        raise DeadlineTooShort(remaining, max(wait + service, MIN_RETRY_SECONDS))

    def _check_client(self, client: str, num_requests: int, num_rows: int, expected_seconds: float) -> None:
        """Raises ClientLimit if these requests are more than the client may have in flight."""
        mine, config = self._clients.get(client, NO_REQUESTS), self._config
        checks = (
            ("requests", mine.num_requests + num_requests, config.max_client_requests),
            ("rows", mine.num_rows + num_rows, config.max_client_rows),
        )
        for what, number, limit in checks:
            if limit is not None and number > limit:
                raise ClientLimit(number, what, limit, max(expected_seconds, MIN_RETRY_SECONDS))

    def _learn(self, accepted: Accepted, seconds: float, steps: int, *, late: bool) -> None:
        if accepted.request.priority is Priority.BULK:
            return
        correction = self._corrections[accepted.request.priority]
        # The time that a late one would have taken is unknown: it only counts if it is already longer than expected.
        if accepted.uncorrected_seconds and (not late or seconds > accepted.expected_seconds):
            ratio = seconds / accepted.uncorrected_seconds
            correction.add(min(max(ratio, 1 / MAX_CORRECTION), MAX_CORRECTION))
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
