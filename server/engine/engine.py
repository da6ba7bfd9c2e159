"""One step of the engine: drop, admit, encode and join, step, answer. Owned by one thread; has no thread itself."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from runtime.decoding.batch import BatchRequest, RunningBatch
from runtime.decoding.hypothesis import Hypothesis
from runtime.stepper import Stepper
from server.engine.request import EngineRequest, Outcome, RequestStats, Result, StepResult, StepStats
from server.engine.scheduler import Budget, Scheduler
from server.errors import AttendantError, Cancelled, DeadlineExceeded


@dataclass(slots=True)
class _Running:
    """What is noted of a running request, for its timings; the counts are the engine's own at its admission."""

    request: EngineRequest
    admitted: float
    encoded: float
    num_steps: int
    num_row_steps: int
    first_token: float = 0.0


class Engine:
    """Requests in, outcomes out, one decoder step at a time."""

    def __init__(self, stepper: Stepper, budget: Budget, clock: Callable[[], float] = time.monotonic) -> None:
        self.scheduler = Scheduler(budget)
        self._clock = clock
        self._batch: RunningBatch[int] = RunningBatch(stepper, clock)
        self._running: dict[int, _Running] = {}
        self._cancelled: set[int] = set()
        self._num_steps = 0
        self._num_row_steps = 0

    @property
    def has_work(self) -> bool:
        return bool(self.scheduler.num_waiting or self.scheduler.num_running)

    @property
    def num_rows(self) -> int:
        """Live hypotheses of all requests."""
        return self._batch.num_rows

    def submit(self, request: EngineRequest) -> None:
        self.scheduler.add(request)

    def cancel(self, key: int) -> None:
        """The client has gone: the next step frees what the request holds. A key that is not here is ignored."""
        self._cancelled.add(key)

    def step(self) -> StepResult:
        """Does one round; every request that ends in it is among the outcomes exactly once."""
        began = self._clock()
        outcomes: list[tuple[int, Outcome]] = []
        cancelled_rows = self._drop(began, outcomes)
        admitted = self.scheduler.admit()
        admitting = self._clock()
        phases = {"admit": admitting - began}
        if admitted:
            self._batch.join([BatchRequest(r.key, r.source_ids, r.search) for r in admitted])
            encoded = self._clock()
            phases["encode"] = encoded - admitting
            for request in admitted:
                self._running[request.key] = _Running(request, admitting, encoded, self._num_steps, self._num_row_steps)
        num_rows = useful = computed = 0
        if self._batch.num_rows:
            report = self._batch.step()
            num_rows, useful, computed = report.num_rows, report.useful_cells, report.computed_cells
            phases |= report.seconds
            self._num_steps += 1
            self._num_row_steps += num_rows
            self._answer(admitted, report.finished, outcomes)
        stats = StepStats(
            num_rows=num_rows,
            num_encoded=len(admitted),
            cancelled_rows=cancelled_rows,
            useful_cells=useful,
            computed_cells=computed,
            phase_seconds=phases,
        )
        return StepResult(stats, outcomes)

    def _drop(self, now: float, outcomes: list[tuple[int, Outcome]]) -> int:
        """Frees the rows of requests that nobody waits for any more; returns how many rows that were."""
        gone: dict[int, AttendantError] = {key: DeadlineExceeded() for key in self.scheduler.expired(now)}
        gone |= {key: Cancelled() for key in self._cancelled}
        self._cancelled.clear()
        if not gone:
            return 0
        held = self._batch.rows_of()
        for key, error in gone.items():
            if self.scheduler.remove(key) is not None:
                self._running.pop(key, None)
                outcomes.append((key, error))
        self._batch.remove(set(gone))
        return sum(held.get(key, 0) for key in gone)

    def _answer(
        self,
        newcomers: list[EngineRequest],
        finished: list[tuple[int, tuple[Hypothesis, ...]]],
        outcomes: list[tuple[int, Outcome]],
    ) -> None:
        now = self._clock()
        for request in newcomers:
            self._running[request.key].first_token = now
        for key, hypotheses in finished:
            self.scheduler.remove(key)
            outcomes.append((key, Result(hypotheses, self._stats_of(self._running.pop(key), now))))

    def _stats_of(self, running: _Running, now: float) -> RequestStats:
        submitted = running.request.submitted
        steps = self._num_steps - running.num_steps
        return RequestStats(
            queue=running.admitted - submitted,
            encode=running.encoded - running.admitted,
            decode=now - running.encoded,
            first_token=running.first_token - submitted,
            total=now - submitted,
            steps=steps,
            mean_batch_rows=(self._num_row_steps - running.num_row_steps) / steps,
        )
