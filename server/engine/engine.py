"""The engine: one round of it (drop, admit, encode and join, step, answer), and the loop of a worker around the rounds.

One thread owns an engine; it has no thread itself. In a worker process commands come in on a socket, and after rounds
reports go out. Every report wakes the server's process, which finds that the decoding has evicted its code and data
from the caches. And callers that are answered together send their next requests together, which are then encoded in
one call. So the reports of rounds shortly after one another are sent together.
"""

import math
import select
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from attendant.runtime.bundle.manifest import SpecialIds
from attendant.runtime.decoding.batch import BatchRequest, RunningBatch, StepReport
from attendant.runtime.decoding.hypothesis import Progress, TextOf
from attendant.runtime.stepper import Stepper
from attendant.server.engine.messages import (
    RECEIVED_BYTES,
    EngineRequest,
    FlightRecord,
    Frames,
    Outcomes,
    Priority,
    Report,
    RequestStats,
    Result,
    StepResult,
    StepStats,
    framed,
    out_of_time,
)
from attendant.server.engine.scheduler import Budget, Scheduler, width_of
from attendant.server.errors import AttendantError, Cancelled, DeadlineExceeded

NO_STEP = StepReport([], [], 0, 0, 0)


@dataclass(slots=True)
class _Running:
    """A running request with its timings; the counts are its batch's when it was admitted."""

    request: EngineRequest
    admitted: float
    encoded: float
    num_steps: int
    num_row_steps: int
    first_token: float = 0.0


class _PriorityBatch:
    """A priority's running batch, and counts of its steps."""

    def __init__(
        self, stepper: Stepper, special_ids: SpecialIds, clock: Callable[[], float], text_of: TextOf | None
    ) -> None:
        self.batch = RunningBatch(stepper, special_ids, clock, text_of)
        self.num_steps = 0
        self.num_row_steps = 0
        self.newcomers: list[_Running] = []


class Engine:
    """Requests in, outcomes out, one decoder step at a time."""

    def __init__(
        self,
        stepper: Stepper,
        budget: Budget,
        special_ids: SpecialIds,
        clock: Callable[[], float] = time.monotonic,
        scheduler: Callable[[Budget], Scheduler] = Scheduler,
        text_of: TextOf | None = None,
    ) -> None:
        """Makes an engine without requests.

        Args:
            scheduler: makes the scheduler. Measurements replace it to compare policies.
            text_of: decodes hypotheses, which are distinct by their text. If None, they are distinct by their tokens.
        """
        self.scheduler = scheduler(budget)
        self._clock = clock
        # Stepped apart: rows that pause cost nothing, and keep their state.
        self._batches = {priority: _PriorityBatch(stepper, special_ids, clock, text_of) for priority in Priority}
        self._running: dict[int, _Running] = {}
        self._cancelled: set[int] = set()
        self._stepped = Priority.INTERACTIVE
        # Rounds that begin before this time need no scheduling: see Scheduler.end_round.
        self._settled_until = -math.inf

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    @property
    def num_rows(self) -> int:
        """Live hypotheses of all requests."""
        return sum(priority.batch.num_rows for priority in self._batches.values())

    def submit(self, request: EngineRequest) -> None:
        self.scheduler.add(request)
        self._settled_until = -math.inf

    def cancel(self, key: int) -> None:
        """Cancels a request: the next round frees its rows. Unknown keys are ignored."""
        self._cancelled.add(key)
        self._settled_until = -math.inf

    def step(self, record: Callable[[Iterable[int]], None] = lambda keys: None) -> StepResult:
        """Runs one round. Every request that ends in it is among the outcomes exactly once.

        Args:
            record: called with the keys of the requests in the batch, before a batch with other requests is computed.
        """
        began = self._clock()
        outcomes: Outcomes = []
        phases: dict[str, float] = {}
        admitted: list[EngineRequest] = []
        priority, cancelled_rows = Priority.INTERACTIVE, 0
        is_settled = began < self._settled_until
        if not is_settled:
            cancelled_rows = self._drop(began, outcomes)
            priority = self.scheduler.next_priority()
            admitted = self.scheduler.admit(priority)
        running = self._batches[priority]
        if admitted or priority is not self._stepped:
            self._stepped = priority
            keys = [key for key, other in self._running.items() if other.request.priority is priority]
            record(keys + [request.key for request in admitted])
        if not is_settled:
            phases["admit"] = self._clock() - began
        if admitted:
            phases["encode"] = self._join(admitted, priority)
        report = NO_STEP
        # Other work makes one call into the model per round: an interactive request need not wait for two.
        if running.batch.num_rows and (not admitted or priority is Priority.INTERACTIVE):
            report = running.batch.step()
            phases |= report.seconds
            running.num_steps += 1
            running.num_row_steps += report.num_rows
            if not is_settled:
                self.scheduler.note_step(priority, sum(report.seconds.values()), report.num_rows)
        ended = [key for key, _ in report.finished]
        if not is_settled:
            self._settled_until = self.scheduler.end_round(priority, self._clock() - began, ended)
        else:
            for key in ended:
                self.scheduler.remove(key)
        if report.num_rows and (report.finished or running.newcomers):
            self._answer(running, report, outcomes)
        cells = report.useful_cells, report.computed_cells
        stats = StepStats(priority, report.num_rows, len(admitted), cancelled_rows, *cells, phases)
        return StepResult(stats, outcomes, report.progress)

    def _join(self, admitted: list[EngineRequest], priority: Priority) -> float:
        """Encodes newcomers and adds them to their batch; returns the seconds that it took."""
        joined = self._batches[priority]
        began = self._clock()
        joined.batch.join([BatchRequest(r.key, r.source_ids, r.options, r.streams) for r in admitted])
        ended = self._clock()
        for request in admitted:
            running = _Running(request, began, ended, joined.num_steps, joined.num_row_steps)
            self._running[request.key] = running
            joined.newcomers.append(running)
        num_positions = len(admitted) * max([width_of(request) for request in admitted])
        self.scheduler.note_encoding(priority, ended - began, num_positions)
        return ended - began

    def _drop(self, now: float, outcomes: Outcomes) -> int:
        """Drops requests that were cancelled or came too late; returns the number of freed rows."""
        missed, expired = self.scheduler.missed(now), self.scheduler.expired(now)
        if not missed and not expired and not self._cancelled:
            return 0
        gone: dict[int, AttendantError] = {key: DeadlineExceeded() for key in expired}
        gone |= {key: Cancelled() for key in self._cancelled}
        self._cancelled.clear()
        for key in missed:
            if (request := self.scheduler.remove(key)) is not None:
                outcomes.append((key, out_of_time(request, now)))
        for key, error in gone.items():
            if self.scheduler.remove(key) is not None:
                self._running.pop(key, None)
                outcomes.append((key, error))
        return sum(priority.batch.remove(gone.keys()) for priority in self._batches.values())

    def _answer(self, stepped: _PriorityBatch, report: StepReport, outcomes: Outcomes) -> None:
        now = self._clock()
        for running in stepped.newcomers:
            running.first_token = now
        stepped.newcomers.clear()
        for key, hypotheses in report.finished:
            stats = _stats_of(self._running.pop(key), stepped, now)
            outcomes.append((key, Result(hypotheses, stats, report.traces.get(key))))


def _stats_of(running: _Running, batch: _PriorityBatch, now: float) -> RequestStats:
    submitted = running.request.submitted
    steps = batch.num_steps - running.num_steps
    return RequestStats(
        queue=running.admitted - submitted,
        encode=running.encoded - running.admitted,
        decode=now - running.encoded,
        first_token=running.first_token - submitted,
        total=now - submitted,
        steps=steps,
        mean_batch_rows=(batch.num_row_steps - running.num_row_steps) / steps,
        submitted=submitted,
    )


HELD_PART = 0.2
"""An outcome is held for at most this part of the time that its request has taken, the next round included."""

MIN_PART = 3  # Outcomes are sent as soon as they number a third of the requests that still run.
PROGRESS_SECONDS = 0.005
"""Progress is held no longer: a sixth of the time between two messages of a stream. First tokens are not held."""

REPORT_SECONDS = 0.05  # Greatest age of a round's stats when they are sent.
MESSAGE_BYTES = 1 << 20
"""Outcomes with arrays of more than this are sent in several messages, because the server reads a message at once."""


class Outbox:
    """Outcomes and progress that have not been sent. All of them are sent together. Pure."""

    def __init__(self) -> None:
        self._outcomes: Outcomes = []
        self._progress: dict[int, Progress] = {}
        self._send_by = math.inf

    def add(self, outcomes: Outcomes, progress: Iterable[tuple[int, Progress]], now: float) -> None:
        """Adds the outcomes of a round, and the progress of the requests that stream."""
        for key, later in progress:
            held = self._progress.get(key, later)
            # Where they overlap, the later one counts.
            self._progress[key] = Progress(held.first, (*held.token_ids[: later.first - held.first], *later.token_ids))
            self._send_by = min(self._send_by, now + (PROGRESS_SECONDS if later.first else 0.0))
        self._outcomes += outcomes
        for _, outcome in outcomes:
            # Errors are sent at once.
            patience = HELD_PART * outcome.stats.total if isinstance(outcome, Result) else 0.0
            self._send_by = min(self._send_by, now + patience)

    def is_due(self, num_running: int, now: float, round_seconds: float) -> bool:
        """Returns whether to send now, and not after the next round.

        Args:
            num_running: requests that may end next.
            round_seconds: expected duration of the next round.
        """
        is_late = now + round_seconds >= self._send_by
        return is_late or (bool(self._outcomes) and len(self._outcomes) * MIN_PART >= num_running)

    def take(self) -> tuple[Outcomes, list[tuple[int, Progress]]]:
        """Removes and returns everything: outcomes in order, and progress once for each request."""
        outcomes, progress = self._outcomes, list(self._progress.items())
        self._outcomes, self._progress, self._send_by = [], {}, math.inf
        return outcomes, progress


def in_messages(outcomes: Outcomes) -> list[Outcomes]:
    """Divides outcomes, in order, into messages of about MESSAGE_BYTES at most; returns at least one."""
    messages: list[Outcomes] = [[]]
    num_bytes = 0
    for key, outcome in outcomes:
        if num_bytes > MESSAGE_BYTES:
            messages.append([])
            num_bytes = 0
        messages[-1].append((key, outcome))
        if isinstance(outcome, Result):
            num_bytes += sum(each.attention.nbytes for each in outcome.hypotheses if each.attention is not None)
            num_bytes += sum(search.num_bytes for search in outcome.trace or ())
    return messages


def serve_engine(connection: socket.socket, engine: Engine, record: FlightRecord) -> None:
    """Executes commands until the other end closes the connection. Raises the errors of a step.

    One thread does everything: it looks for commands between two rounds, and waits for them when there is no work.
    """
    frames = Frames()
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    outbox = Outbox()
    stats: list[StepStats] = []
    reported = time.monotonic()
    has_work = engine.has_work
    while True:
        if poll.poll(0 if has_work else None):
            data = connection.recv(RECEIVED_BYTES)
            if not data:
                return
            for commands in frames.feed(data):
                for request in commands.requests:
                    engine.submit(request)
                for key in commands.cancelled:
                    engine.cancel(key)
                if commands.bulk is not None:
                    engine.scheduler.limit_bulk(commands.bulk)
            has_work = engine.has_work
        if not has_work:
            continue
        began = time.monotonic()
        result = engine.step(record.note)
        has_work = engine.has_work
        stats.append(result.stats)
        now = time.monotonic()
        outbox.add(result.outcomes, result.progress, now)
        # The next round will take about as long as this one.
        is_due = outbox.is_due(engine.scheduler.num_running(result.stats.priority), now, now - began)
        if is_due or not has_work or now - reported > REPORT_SECONDS:
            waiting = tuple(engine.scheduler.num_waiting(priority) for priority in Priority)
            num_rows = max(engine.num_rows, *(each.num_rows for each in stats))
            outcomes, progress = outbox.take()
            *parts, last = in_messages(outcomes)
            for part in parts:
                connection.sendall(framed(Report(part, [], [], waiting, num_rows)))
            connection.sendall(framed(Report(last, progress, stats, waiting, num_rows)))
            stats, reported = [], now
