"""Toolkits that decode in worker processes: shared jobs, the fastest batch size, one table for all of them."""

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace

from attendant.runtime.bundle.manifest import Precision
from benchmarks.command import Context
from benchmarks.harness.measurement import Columns, System, Visit, Visits, measure, part_of, remarks, spread_of
from benchmarks.harness.process import KEEP_MEMORY, Process
from benchmarks.harness.results import Part
from benchmarks.job import Job, share

BEAM_SIZE = 4
SEARCHES = {"greedy": 1, f"beam {BEAM_SIZE}": BEAM_SIZE}
PRECISIONS: tuple[Precision, ...] = ("int8", "fp32")
NUM_WORKERS = 2
NUM_ALONE = 20
"""Sentences decoded one after the other in a visit, at least."""

MAX_WARM_UPS = 6
WARM = 1.05
"""Some runtimes are slower until the allocator has seen their sizes: a system is warm when a run is not faster by this
factor than the one before."""

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A toolkit with a model.

    Attributes:
        key, name, about: as in `System`.
        command: makes what is missing; returns the command of a worker process, which answers jobs (job.py). Raises
            Unavailable.
        num_workers: processes that share each job.
        batch_sizes: the ones tried; the fastest is the system's best setting.
    """

    key: str
    name: str
    command: Callable[[], Sequence[str]]
    num_workers: int = 1
    batch_sizes: Sequence[int] = (64, 128)
    about: str = ""

    def system(self, jobs: Mapping[str, Job], seconds: float) -> System:
        """Does each of the jobs in every round, for about so long; one without a batch size in the fastest one."""

        def visit(pool: Workers, job: Job) -> Visit:
            fastest = pool.fastest(job, seconds, [job.batch_size] if job.batch_size else self.batch_sizes)
            return lambda number: pool.run(replace(fastest, seed=number))

        def start() -> Iterator[Visits]:
            with workers(self) as pool:
                yield {name: visit(pool, job) for name, job in jobs.items()}

        return System(key=self.key, name=self.name, start=start, about=self.about)


def own_decoder(
    context: Context, precision: str, *, num_workers: int = 1, num_threads: int = 1, bare: bool = False
) -> Decoder:
    """Attendant's own decoding; `bare`: the same calls into the graphs with nothing around them."""
    worker = sys.executable, "-m", "benchmarks.decoding.attendant_worker"
    options = precision, str(num_threads), *(["bare"] if bare else [])
    return Decoder(
        key=f"{'bare' if bare else 'attendant'}_{precision}",
        name=f"{'bare graphs' if bare else 'Attendant'} {precision}, {layout(num_workers, num_threads)}",
        command=lambda: (*worker, str(context.bundle), *options),
        num_workers=num_workers,
        batch_sizes=(32, 64, 128, 256),
    )


def layout(num_workers: int, num_threads: int = 1) -> str:
    """Worker processes and threads of each, in words."""
    counts = ((num_workers, "worker"), (num_threads, "thread"))
    return " x ".join(f"{number} {noun}{'' if number == 1 else 's'}" for number, noun in counts)


@contextmanager
def workers(decoder: Decoder) -> Iterator["Workers"]:
    """Starts the worker processes, keeps them warm and ends them. Raises Unavailable."""
    command = decoder.command()
    with ExitStack() as exits:
        started = [Process(command, KEEP_MEMORY | ONE_THREAD, answers=True) for _ in range(decoder.num_workers)]
        processes = [exits.enter_context(process) for process in started]
        for process in processes:
            process.await_ready()
        yield Workers(processes)


class Workers:
    """The worker processes of one toolkit."""

    def __init__(self, processes: Sequence[Process]) -> None:
        self._processes = processes

    def run(self, job: Job) -> dict[str, float]:
        """Shares the job out and waits for all: sentences per second by this process's clock, processor time per
        sentence of all workers together, the median time of a batch. Raises Unavailable.
        """
        began = time.perf_counter()
        for number, process in enumerate(self._processes):
            process.ask(asdict(share(job, number, len(self._processes))))
        answers = [process.answer() for process in self._processes]
        seconds = time.perf_counter() - began
        return {
            "speed": job.num_sentences / seconds,
            "cpu_ms": 1e3 * sum(answer["cpu_seconds"] for answer in answers) / job.num_sentences,
            "ms": 1e3 * statistics.median(latency for answer in answers for latency in answer["latencies"]),
            "sentences": job.num_sentences,
            "batch": job.batch_size,
        }

    def fastest(self, job: Job, seconds: float, batch_sizes: Sequence[int]) -> Job:
        """The job with the fastest of these batch sizes, and as many sentences as take so long.

        Args:
            job: its num_sentences is what each size is tried with.
        """
        speeds = {size: self._warm_speed(self._of_size(job, size)) for size in batch_sizes}
        best = max(speeds, key=lambda size: speeds[size])
        return self._of_size(replace(job, num_sentences=int(speeds[best] * seconds)), best)

    def _of_size(self, job: Job, batch_size: int) -> Job:
        """Whole batches for every worker, and at least one."""
        group = batch_size * len(self._processes)
        return replace(job, batch_size=batch_size, num_sentences=max(1, round(job.num_sentences / group)) * group)

    def _warm_speed(self, job: Job) -> float:
        speed = self.run(job)["speed"]
        for _ in range(MAX_WARM_UPS):
            before, speed = speed, self.run(job)["speed"]
            if speed < before * WARM:
                return max(before, speed)
        return speed


def job_of(context: Context, *, num_sentences: int = 256, beam_size: int = 1, batch_size: int = 64) -> Job:
    """Sentences of the workload's length."""
    num, workload = 8 if context.quick else num_sentences, context.workload
    return Job(num, workload.num_tokens, workload.vocabulary_size, beam_size, batch_size)


def throughput(context: Context, decoders: Sequence[Decoder], beam_size: int) -> Part:
    """Many sentences at once. Of decoders of one key, the fastest is the one that is compared."""
    job = job_of(context, num_sentences=256 // beam_size, beam_size=beam_size, batch_size=0)
    systems = [decoder.system({"": job}, context.visit_seconds) for decoder in decoders]
    columns: Columns = {
        "sentences/s": "speed",
        "slowest-fastest": spread_of("speed"),
        "batch": lambda one: f"{one.median('batch'):.0f}",
        "CPU ms/sentence": "cpu_ms",
        "remarks": remarks,
    }
    return part_of(measure(systems, context.num_rounds), columns, best_by="speed")


def one_by_one(context: Context, decoders: Sequence[Decoder]) -> Part:
    """One sentence after the other."""
    job = job_of(context, num_sentences=NUM_ALONE, batch_size=1)
    systems = [decoder.system({"": job}, context.visit_seconds / 4) for decoder in decoders]
    columns: Columns = {
        "ms": "ms",
        "CPU ms/sentence": "cpu_ms",
        "sentences": lambda one: f"{sum(one.samples['sentences']):,.0f}",
        "remarks": remarks,
    }
    return part_of(measure(systems, context.num_rounds), columns)
