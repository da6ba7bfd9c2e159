"""A model's engines as the event loop uses them, and overload control.

Requests are submitted, and each is a future of its outcome. A request is refused at once if, by an estimate, it can't
be answered before its deadline, or would wait too long. An accepted request carries the time by which it must have
begun; the queues drop it if it has not. A list is accepted or refused as a whole, by the estimate for its last request.
Bulk requests are not refused; they wait for permits (`FairSemaphore`), for which clients take turns.
"""

import asyncio
import itertools
import operator
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import NamedTuple

from attendant.runtime.decoding.hypothesis import Progress
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.stepper import padded_width
from attendant.server import errors
from attendant.server.config import ServerConfig
from attendant.server.engine.messages import MIN_RETRY_SECONDS, EngineRequest, Outcome, Priority, Result, Updates
from attendant.server.engine.pool import WorkerPool
from attendant.server.engine.scheduler import MovingAverage

FILL = 0.5
"""A request may be expected to wait for this part of the time that its deadline leaves beyond the decoding. Waits vary,
and estimates are rough."""

SERVICE_FILL = 0.8
"""A request's decoding may be expected to take this part of the time that is left for it: the pace varies, too. At ten
times the capacity, with two workers on two cores, 2 to 4 % of the accepted requests came late; with 1.0, 4 to 9 %."""

IDLE_DEADLINE_SLACK = 2.0
"""While nothing runs, a request is tried even if it is expected to take this many times the time until its deadline."""

CORRECTION_WEIGHT = 1 / 64
MAX_CORRECTION = 4.0  # An answer corrects the estimates by at most this factor, or its inverse.


class Prediction(NamedTuple):
    """The expectation for an interactive request, and its end.

    Attributes:
        expected_seconds, seconds: from submission to the answer, or until a late request was dropped.
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


LENGTH_WEIGHT = 1 / 64  # Weight of an answer in the mean steps of its kind.


class Lengths:
    """Mean steps of a model's answers, by padded source width and beam size.

    For a width and beam size without answers yet, steps are estimated by the mean ratio of steps to source positions.
    """

    def __init__(self) -> None:
        self._steps: dict[tuple[int, int], MovingAverage] = {}
        self._steps_per_position = MovingAverage(LENGTH_WEIGHT, 1.0)

    def expected(self, num_positions: int, options: DecodingOptions) -> float:
        """Returns the expected steps, at least 1, of a source of `num_positions` positions."""
        if options.scores_prefix:
            return float(len(options.target_prefix))
        known = self._steps.get((padded_width(num_positions), options.beam_size))
        steps = self._steps_per_position.value * num_positions if known is None else known.value
        # The last step decides whether it ends.
        return min(max(steps, options.min_length + 1), options.max_length + 1)

    def note(self, num_positions: int, options: DecodingOptions, num_steps: int) -> None:
        """Learns from a request that was answered after `num_steps` steps."""
        if options.scores_prefix or options.min_length >= num_steps - 1:
            return  # the caller chose the length
        kind = padded_width(num_positions), options.beam_size
        known = self._steps.get(kind)
        if known is None:
            known = self._steps[kind] = MovingAverage(LENGTH_WEIGHT)
        elif num_steps > options.max_length and known.value > num_steps:
            return  # cut: it would have been longer
        known.add(num_steps)
        self._steps_per_position.add(num_steps / num_positions)


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
            keys: yields a key for each request; it may be endless.
            sources: at least one.

        Raises:
            Overloaded, DeadlineExceeded: of interactive requests.
        """
        rows = [options.max_rows for _, options in sources]
        steps = [self._lengths.expected(len(source_ids), options) for source_ids, options in sources]
        expected, uncorrected, start_within = 0.0, 0.0, None
        if priority is not Priority.BULK:
            priority = self._priority(client, sum(rows))
            expected, uncorrected, start_within = self._estimate(client, priority, rows, steps, timeout_seconds, now)
        self._count(priority, client, len(rows), sum(rows))
        deadline = None if timeout_seconds is None else now + timeout_seconds
        start_by = None if start_within is None else now + start_within
        requests = [
            EngineRequest(key, source_ids, options, now, deadline, priority, client, num_steps, start_by, streams)
            for (source_ids, options), num_steps, key in zip(sources, steps, keys, strict=False)
        ]
        # The last request was estimated, and its outcome corrects the estimates.
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
        elif isinstance(outcome, errors.DeadlineExceeded | errors.OutOfTime) or (
            outcome is None and request.deadline is not None and errors.deadline_has_passed(request.deadline - now)
        ):
            self._learn(accepted, now - request.submitted, 0, late=True)

    def _priority(self, client: str, num_rows: int) -> Priority:
        """Returns whether a client that requests `num_rows` more rows is light or heavy."""
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
        now: float,
    ) -> tuple[float, float, float | None]:
        """Estimates when the last of a client's interactive requests would be answered, or raises why they are refused.

        Args:
            rows, steps: of each request, the largest number of rows and the expected number of steps.
            now: the time, on the clock of `time.monotonic`.

        Returns:
            The seconds until that answer, the same before the correction, and the seconds within which each request
            must have been admitted to be answered before the deadline (None if at any time).
        """
        config, pool, throughput = self._config, self._pool, self._pool.throughput
        num_rows, last_work = sum(rows), rows[-1] * steps[-1]
        # If a list is too large for the free rows, a part of it waits, and its last request waits for that whole part.
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
        neighbours = (self._rows[priority] + num_rows - rows[-1]) / pool.num_engines
        step_rows = min(pool.max_rows, neighbours + rows[-1], throughput.peak_rows + rows[-1])
        step_seconds = throughput.step_seconds(step_rows)
        decoding = throughput.encode_seconds + steps[-1] * step_seconds
        correction = self._corrections[priority].value
        # It gets the rows of a request that ends. Requests that began together end together, so all work ahead may be
        # small and the wait still be a whole decoding.
        if num_free < num_rows and (last := pool.freeing(priority, num_rows, ahead.num_requests)) is not None:
            sent, num_steps = last
            waiting = max(waiting, throughput.encode_seconds + num_steps * step_seconds - (now - sent) / correction)
        wait, service = waiting * correction, decoding * correction
        self._check_client(client, len(rows), num_rows, wait + service)
        num_waiting = pool.num_waiting(Priority.INTERACTIVE) + pool.num_waiting(Priority.HEAVY)
        if num_waiting + ahead.num_own + 2 * num_before >= config.max_waiting:
            raise errors.QueueFull(
                num_waiting,
                ahead.num_own,
                max(wait / 2, MIN_RETRY_SECONDS),
                num_listed=round(num_before) + 1,
                num_free=max(0, config.max_waiting - num_waiting - ahead.num_own) // 2,
            )
        if wait > config.max_wait_seconds:
            raise errors.WaitTooLong(wait, config.max_wait_seconds, retry_seconds=wait)
        start_within = None if timeout_seconds is None else self._start_within(timeout_seconds, wait, service)
        return wait + service, waiting + decoding, start_within

    def _start_within(self, remaining: float, wait: float, service: float) -> float | None:
        """Returns the seconds within which a request must begin to meet its deadline; None if it is only tried."""
        if remaining <= 0:
            raise errors.DeadlineExceeded
        if wait / FILL + service / SERVICE_FILL <= remaining:
            return remaining - service
        if not any(self._rows.values()) and service <= IDLE_DEADLINE_SLACK * remaining:
            return None
        expected = max(wait + service, MIN_RETRY_SECONDS)
        raise errors.DeadlineTooShort(remaining, expected, retry_seconds=expected)

    def _check_client(self, client: str, num_requests: int, num_rows: int, expected_seconds: float) -> None:
        """Raises ClientLimit if these requests are more than the client may have in flight."""
        mine, config = self._clients.get(client, NO_REQUESTS), self._config
        checks = (
            ("requests", mine.num_requests + num_requests, config.max_client_requests),
            ("rows", mine.num_rows + num_rows, config.max_client_rows),
        )
        for unit, number, limit in checks:
            if limit is not None and number > limit:
                retry_seconds = max(expected_seconds, MIN_RETRY_SECONDS)
                raise errors.ClientLimit(number, unit, limit, retry_seconds=retry_seconds)

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


class FairSemaphore:
    """A semaphore whose waiting clients take turns, and so do the streams of a client. A client alone may have all."""

    def __init__(self, num_permits: int) -> None:
        self.num_permits = num_permits
        self.num_held = 0
        # By client; the client whose turn is next comes first. None of the queues is empty.
        self._waiters: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def is_free(self) -> bool:
        """True if `acquire` would not wait."""
        return self.num_held < self.num_permits and not self._waiters

    async def acquire(self, client: str = "") -> None:
        """Waits for a permit. Clients share the permits evenly."""
        if self.is_free:
            self.num_held += 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(client, deque()).append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():  # a permit has just been assigned to it
                self.release()
            raise

    def release(self) -> None:
        """Returns a permit, which goes to the client whose turn it is."""
        self.num_held -= 1
        while self._waiters and self.num_held < self.num_permits:
            client, queue = next(iter(self._waiters.items()))
            waiter = queue.popleft()
            if not waiter.done():  # else its stream ended while it waited
                self.num_held += 1
                waiter.set_result(None)
                self._waiters.move_to_end(client)
            if not queue:
                del self._waiters[client]


DELIVERED_AT_ONCE = 8
"""Outcomes of heavy and bulk requests that are delivered in one turn of the event loop. Other calls should not wait
until hundreds of answers have been written."""

HEAVY_WEIGHT = 4
"""Bulk outcomes that a heavy one counts as: it wakes a call that makes its answer at once; a stream's queue up."""


class _Waiting(NamedTuple):
    """A caller that waits for an outcome."""

    outcome: asyncio.Future[Outcome]
    accepted: Accepted
    on_progress: Callable[[Progress], None] | None


class EngineClient:
    """One model's engines, used from the event loop in which `start` was awaited.

    Every request is a future of its outcome. Cancelling the future cancels the request, and its rows are free within a
    step.

    Attributes:
        bulk_permits: one is to be acquired before a bulk request is submitted, and released after its outcome, whether
            or not its client reads it. So they are freed as fast as the engine works.
    """

    def __init__(
        self,
        pool: WorkerPool,
        config: ServerConfig,
        *,
        max_bulk: int,
        on_death: Callable[[], None],
        on_prediction: Callable[[Prediction], None] = lambda prediction: None,
    ) -> None:
        """Takes over engines that have not been started.

        Args:
            max_bulk: bulk requests that may be in flight, waiting or running.
            on_death: called once, after the engines have failed for good and every request has ended.
        """
        self._pool = pool
        self._control = OverloadControl(pool, config, on_prediction)
        self._on_death = on_death
        self._keys = itertools.count()
        self._draining = self._dead = False
        self._in_flight: dict[int, _Waiting] = {}
        self._undelivered: deque[tuple[int, Progress | Outcome]] = deque()
        self._is_delivering = False
        self.bulk_permits = FairSemaphore(max_bulk)

    async def start(self) -> None:
        """Starts the engines. Raises the errors of WorkerPool.start."""
        await self._pool.start(self._deliver, self._die)

    def submit_all(
        self,
        sources: Sequence[Source],
        timeout_seconds: float | None,
        priority: Priority = Priority.INTERACTIVE,
        client: str = "",
        listeners: Sequence[Callable[[Progress], None]] | None = None,
    ) -> list[asyncio.Future[Outcome]]:
        """Submits requests, all of them or none.

        Args:
            sources: at least one, each of no more rows than the engine's budget.
            timeout_seconds: time left until the caller's deadline. If None, there is no deadline.
            priority: interactive or bulk. A permit must have been acquired for each bulk request.
            client: name of the client; clients share the engine.
            listeners: one for each source, called with tokens of its answer as soon as they are certain, until its
                outcome is there. They may come twice, because the requests of an engine that died are decoded again.

        Returns:
            A future of each outcome. It never holds an exception: an error is a value, like a result.

        Raises:
            EngineDead, Draining
            QueueFull, WaitTooLong, ClientLimit, DeadlineTooShort, DeadlineExceeded: of interactive requests.
        """
        if self._dead:
            raise errors.EngineDead
        if self._draining:
            raise errors.Draining
        now, streams = time.monotonic(), listeners is not None
        all_accepted = self._control.accept(
            self._keys, sources, priority, client, now, timeout_seconds, streams=streams
        )
        loop = asyncio.get_running_loop()
        outcomes: list[asyncio.Future[Outcome]] = []
        for accepted, on_progress in zip(all_accepted, listeners or repeat(None), strict=False):
            key, outcome = accepted.request.key, loop.create_future()
            self._in_flight[key] = _Waiting(outcome, accepted, on_progress)
            outcome.add_done_callback(partial(self._cancel_if_cancelled, key))
            outcomes.append(outcome)
        self._pool.submit([accepted.request for accepted in all_accepted])
        return outcomes

    @property
    def is_available(self) -> bool:
        """True if new requests are accepted, and an engine takes them."""
        return not (self._dead or self._draining) and self._pool.is_available

    @property
    def num_waiting(self) -> int:
        """Waiting requests of all priorities."""
        return sum(map(self._pool.num_waiting, Priority))

    @property
    def num_running(self) -> int:
        return self._pool.num_running

    @property
    def num_rows(self) -> int:
        return self._pool.num_rows

    def drain(self) -> None:
        """Refuses new requests; those in flight go on."""
        self._draining = True

    async def finished(self) -> None:
        """Waits, after `drain`, until every request in flight has been answered."""
        while self._in_flight:
            await asyncio.wait([waiting.outcome for waiting in self._in_flight.values()])
            # The callers wake up in the same turn of the event loop: let them take their answers.
            await asyncio.sleep(0)

    def stop(self) -> None:
        """Ends the engines after their step; requests in flight end with Draining."""
        self._draining = True
        self._pool.stop()
        self._end_all(errors.Draining())

    def _deliver(self, updates: Updates) -> None:
        """Delivers updates: to light clients' callers now, to the others some in each turn of the event loop."""
        for key, update in updates:
            waiting = self._in_flight.get(key)
            if waiting is None:  # cancelled
                continue
            if waiting.accepted.request.priority is Priority.INTERACTIVE:
                self._deliver_one(key, update)
            else:
                self._undelivered.append((key, update))
        if self._undelivered and not self._is_delivering:
            self._deliver_some()

    def _deliver_some(self) -> None:
        room = DELIVERED_AT_ONCE
        while self._undelivered and room > 0:
            key, update = self._undelivered.popleft()
            waiting = self._in_flight.get(key)
            is_bulk = waiting is None or waiting.accepted.request.priority is Priority.BULK
            room -= 1 if is_bulk else HEAVY_WEIGHT
            self._deliver_one(key, update)
        self._is_delivering = bool(self._undelivered)
        if self._is_delivering:
            asyncio.get_running_loop().call_soon(self._deliver_some)

    def _end_all(self, error: errors.AttendantError) -> None:
        """Delivers the undelivered updates, and this error to all other callers."""
        while self._undelivered:
            self._deliver_one(*self._undelivered.popleft())
        for key in list(self._in_flight):
            self._deliver_one(key, error)

    def _deliver_one(self, key: int, update: Progress | Outcome) -> None:
        if isinstance(update, Progress):
            if (waiting := self._in_flight.get(key)) is not None and waiting.on_progress is not None:
                waiting.on_progress(update)
        elif (waiting := self._in_flight.pop(key, None)) is not None:
            self._control.ended(waiting.accepted, update, time.monotonic())
            if not waiting.outcome.done():
                waiting.outcome.set_result(update)

    def _cancel_if_cancelled(self, key: int, outcome: "asyncio.Future[Outcome]") -> None:
        if outcome.cancelled() and (waiting := self._in_flight.pop(key, None)) is not None:
            self._control.ended(waiting.accepted, None, time.monotonic())
            self._pool.cancel(key)

    def _die(self) -> None:
        self._dead = True
        self._end_all(errors.EngineDead())
        self._on_death()
