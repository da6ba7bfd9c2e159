"""All systems on the same job, in turns: a machine that slows down slows all of them."""

import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from benchmarks.decoding.job import Job
from benchmarks.decoding.pool import Outcome, Pool, WorkerFailed
from benchmarks.decoding.system import System

MAX_WARM_UPS = 6
WARM = 1.05
"""Some runtimes are slower until the allocator has seen their sizes: a system is warm when a run is not faster by this
factor than the one before."""

Say = Callable[[str], None]


@dataclass(slots=True)
class Measurement:
    """What is known of one system.

    Attributes:
        batch_size: the best of those tried.
        outcomes: one per round.
        problem: why there are none.
    """

    system: System
    batch_size: int = 0
    outcomes: list[Outcome] = field(default_factory=list)
    problem: str | None = None

    @property
    def speed(self) -> float | None:
        """Sentences per second, the median over the rounds."""
        return statistics.median(outcome.speed for outcome in self.outcomes) if self.outcomes else None

    @property
    def cpu_seconds(self) -> float | None:
        """Per sentence, the median over the rounds."""
        if not self.outcomes:
            return None
        return statistics.median(outcome.cpu_seconds / outcome.num_sentences for outcome in self.outcomes)

    @property
    def latency(self) -> float | None:
        """Seconds of a batch, the median over all rounds."""
        latencies = [latency for outcome in self.outcomes for latency in outcome.latencies]
        return statistics.median(latencies) if latencies else None


def measure(
    systems: Sequence[System], job: Job, *, num_rounds: int, visit_seconds: float, say: Say
) -> list[Measurement]:
    """Finds each system's best setting, then visits each once a round.

    Args:
        job: a batch size of 1 is every system's; else the systems' own are tried.
        visit_seconds: about how long a visit lasts; job.num_sentences is the least number of its sentences.
    """
    measurements = [Measurement(system) for system in systems]
    with ExitStack() as exits:
        visits: list[tuple[Measurement, Pool, Job]] = []
        for measurement in measurements:
            try:
                pool = exits.enter_context(Pool(measurement.system))
                best = _best_setting(pool, job, visit_seconds)
            except WorkerFailed as error:
                measurement.problem = str(error)
                say(f"{measurement.system.name}: {error}")
                continue
            measurement.batch_size = best.batch_size
            visits.append((measurement, pool, best))
        for number in range(1, num_rounds + 1) if visits else ():
            for measurement, pool, best in visits:
                if measurement.problem is not None:
                    continue
                try:
                    measurement.outcomes.append(pool.run(replace(best, seed=number)))
                except WorkerFailed as error:
                    measurement.outcomes.clear()
                    measurement.problem = str(error)
            said = (f"{m.system.name} {m.outcomes[-1].speed:,.0f}" for m, _, _ in visits if m.outcomes)
            say(f"round {number} of {num_rounds}, sentences/s: {'; '.join(said)}")
    return measurements


def _best_setting(pool: Pool, job: Job, seconds: float) -> Job:
    batch_sizes = [1] if job.batch_size == 1 else pool.system.batch_sizes
    speeds = {size: _warm_speed(pool, _of_size(job, size, pool.system.num_workers)) for size in batch_sizes}
    best = max(speeds, key=lambda size: speeds[size])
    return _of_size(replace(job, num_sentences=int(speeds[best] * seconds)), best, pool.system.num_workers)


def _of_size(job: Job, batch_size: int, num_workers: int) -> Job:
    """Whole batches for every worker, and at least one."""
    group = batch_size * num_workers
    return replace(job, batch_size=batch_size, num_sentences=max(1, round(job.num_sentences / group)) * group)


def _warm_speed(pool: Pool, job: Job) -> float:
    speed = pool.run(job).speed
    for _ in range(MAX_WARM_UPS):
        before, speed = speed, pool.run(job).speed
        if speed < before * WARM:
            return max(before, speed)
    return speed
