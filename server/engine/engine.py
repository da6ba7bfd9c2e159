"""One round of the engine: drop, admit, encode and join, step, answer. Owned by one thread; has no thread itself."""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from attendant.runtime.bundle.manifest import SpecialIds
from attendant.runtime.decoding.batch import BatchRequest, RunningBatch
from attendant.runtime.decoding.beam_search import Ending
from attendant.runtime.decoding.hypothesis import Progress, TextOf
from attendant.runtime.decoding.trace import Trace
from attendant.runtime.stepper import Stepper
from attendant.server.engine.request import (
    EngineRequest,
    Outcomes,
    Priority,
    RequestStats,
    Result,
    StepResult,
    StepStats,
    out_of_time,
)
from attendant.server.engine.scheduler import Budget, Scheduler, width_of
from attendant.server.errors import AttendantError, Cancelled, DeadlineExceeded


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
        """Cancels a request: the next round frees what it holds. Unknown keys are ignored."""
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
        num_rows = useful = computed = 0
        finished: list[Ending] = []
        traces: Mapping[int, Trace] = {}
        progress: list[tuple[int, Progress]] = []
        # Other work makes one call into the model per round: an interactive request need not wait for two.
        if running.batch.num_rows and (not admitted or priority is Priority.INTERACTIVE):
            report = running.batch.step()
            num_rows, useful, computed = report.num_rows, report.useful_cells, report.computed_cells
            finished, progress, traces = report.finished, report.progress, report.traces
            phases |= report.seconds
            running.num_steps += 1
            running.num_row_steps += num_rows
            if not is_settled:
                self.scheduler.note_step(priority, sum(report.seconds.values()), num_rows)
        ended = [key for key, _ in finished]
        if not is_settled:
            self._settled_until = self.scheduler.end_round(priority, self._clock() - began, ended)
        else:
            for key in ended:
                self.scheduler.remove(key)
        if num_rows and (finished or running.newcomers):
            self._answer(running, finished, traces, outcomes)
        stats = StepStats(priority, num_rows, len(admitted), cancelled_rows, useful, computed, phases)
        return StepResult(stats, outcomes, progress)

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

    def _answer(
        self, stepped: _PriorityBatch, finished: list[Ending], traces: Mapping[int, Trace], outcomes: Outcomes
    ) -> None:
        now = self._clock()
        for running in stepped.newcomers:
            running.first_token = now
        stepped.newcomers.clear()
        for key, hypotheses in finished:
            stats = _stats_of(self._running.pop(key), stepped, now)
            outcomes.append((key, Result(hypotheses, stats, traces.get(key))))


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
