"""Measures decoding without a server: toolkits in worker processes, on the same sentences, in turns."""

import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from attendant.runtime.bundle.manifest import Precision
from attendant.runtime.errors import UserError
from benchmarks import harness
from benchmarks.job import Job, program
from benchmarks.results import Cell, Part
from benchmarks.workload import Context, Workload

BEAM_SIZE = 4
SEARCHES = {"greedy": 1, f"beam {BEAM_SIZE}": BEAM_SIZE}
PRECISIONS: tuple[Precision, ...] = ("int8", "fp32")
NUM_WORKERS = 2
NUM_TRIED = 256  # Rows of a trial of a batch size.
NUM_ALONE = 20  # Sentences of a trial if they are decoded one after the other.
NUM_ROWS = 64
MAX_WARM_UPS = 6
WARM = 1.05
"""Some runtimes become faster while the allocator learns the sizes. A system is warm when its speed is less than this
times that of the run before."""

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A toolkit with a model.

    Attributes:
        name, about: as in `System`.
        command: makes missing files; returns the command of a worker process, which answers jobs (job.py). Raises
            Unavailable.
        num_workers: processes that share each job.
        batch_sizes: candidates; the fastest is the system's best setting.
    """

    name: str
    command: Callable[[], Sequence[str]]
    num_workers: int = 1
    batch_sizes: Sequence[int] = (32, 64, 128, 256)
    about: str = ""

    def system(self, jobs: Mapping[str, Job], seconds: float) -> harness.System:
        """Returns a system that runs each job in every round, for about `seconds`.

        A job's num_sentences is the size of a trial. A job without a batch size takes the fastest one.
        """

        def start() -> Iterator[harness.Visits]:
            with self.workers() as processes:
                yield {name: visit(processes, job) for name, job in jobs.items()}

        def visit(processes: Sequence[harness.Process], job: Job) -> harness.Visit:
            def sized(num_sentences: float, batch_size: int) -> Job:
                """Returns the job in whole batches for every worker, at least one."""
                group = batch_size * len(processes)
                return replace(job, batch_size=batch_size, num_sentences=max(1, round(num_sentences / group)) * group)

            sizes = [job.batch_size] if job.batch_size else self.batch_sizes
            speeds = {size: warm_speed(processes, sized(job.num_sentences, size)) for size in sizes}
            best = max(speeds, key=lambda size: speeds[size])
            fastest = sized(speeds[best] * seconds, best)
            return lambda number: decode(processes, replace(fastest, seed=number))

        return harness.System(name=self.name, start=start, about=self.about)

    @contextmanager
    def workers(self) -> Iterator[list[harness.Process]]:
        """Runs the worker processes. Raises Unavailable."""
        command, environment = self.command(), harness.KEEP_MEMORY | ONE_THREAD
        with ExitStack() as exits:
            processes = [
                exits.enter_context(harness.Process(command, environment, answers=True))
                for _ in range(self.num_workers)
            ]
            for process in processes:
                process.await_ready()
            yield processes


def decode(processes: Sequence[harness.Process], job: Job) -> dict[str, float]:
    """Shares a job among the workers of a decoder and waits for all. Raises Unavailable.

    Returns:
        Sentences per second, the workers' processor time per sentence, and the size of a batch; for sentences one after
        the other, their median latency.
    """
    began = time.perf_counter()
    for number, process in enumerate(processes):
        process.ask(asdict(job.share(number, len(processes))))
    answers = [process.answer() for process in processes]
    num, seconds = job.num_sentences, time.perf_counter() - began
    cpu_seconds = sum(answer["cpu_seconds"] for answer in answers)
    samples = {"speed": num / seconds, "cpu_ms": 1e3 * cpu_seconds / num, "batch": job.batch_size}
    if job.batch_size == 1:
        samples["ms"] = 1e3 * statistics.median(latency for answer in answers for latency in answer["latencies"])
    return samples


def warm_speed(processes: Sequence[harness.Process], job: Job) -> float:
    speed = decode(processes, job)["speed"]
    for _ in range(MAX_WARM_UPS):
        before, speed = speed, decode(processes, job)["speed"]
        if speed < before * WARM:
            return max(before, speed)
    return speed


def own_decoder(
    bundle: Path,
    precision: str,
    num_workers: int = 1,
    num_threads: int = 1,
    name: str = "Attendant",
    prefix: Sequence[str] = (),
) -> Decoder:
    """Returns Attendant's own decoding. The command begins with `prefix`."""
    command = program("own_worker:work", path=str(bundle), precision=precision, num_threads=num_threads)
    return Decoder(
        name=f"{name} {precision}, {layout(num_workers, num_threads)}",
        command=lambda: [*prefix, *command],
        num_workers=num_workers,
    )


def layout(num_workers: int, num_threads: int = 1) -> str:
    """Returns text on the worker processes and the threads of each."""
    counts = ((num_workers, "worker"), (num_threads, "thread"))
    return " x ".join(f"{number} {noun}{'' if number == 1 else 's'}" for number, noun in counts)


def many_sentences(workload: Workload, *searches: str) -> dict[str, Job]:
    """Returns a job for each search of SEARCHES; each decoder takes its fastest batch size."""
    sizes = {search: SEARCHES[search] for search in searches}
    return {search: workload.job(NUM_TRIED // size, beam_size=size, batch_size=0) for search, size in sizes.items()}


def one_by_one(workload: Workload) -> dict[str, Job]:
    return {"one sentence after the other": workload.job(NUM_ALONE, batch_size=1)}


def decoded(context: Context, decoders: Iterable[Decoder], jobs: Mapping[str, Job]) -> Part:
    """Measures decoders in turns; returns a row for each and each of the jobs."""
    systems = [decoder.system(jobs, context.visit_seconds) for decoder in decoders]
    return harness.part_of(harness.measure(systems, context.num_rounds))


def own_decoders(context: Context, *layouts: tuple[int, int]) -> Iterator[Decoder]:
    """Yields Attendant in each precision and layout of workers and threads."""
    for precision in PRECISIONS:
        for num_workers, num_threads in layouts:
            yield own_decoder(context.bundle, precision, num_workers, num_threads)


def decoding(context: Context) -> Part:
    """Decoding in process.

    20 source positions and as many decoder steps. Each system uses its fastest batch size.
    """
    return decoded(context, own_decoders(context, (1, 1), (2, 1), (1, 2)), many_sentences(context.workload, *SEARCHES))


def alone(context: Context) -> Part:
    """One sentence alone, in process.

    Median latency, greedy.
    """
    return decoded(context, own_decoders(context, (1, 1), (1, 2)), one_by_one(context.workload))


def against(context: Context) -> Part:
    """Comparison with another checkout.

    Decoding in process on one thread by this code and by that of another checkout, each with its own bundle, in turns;
    medians of the rounds and their ratio.
    """
    folder: Path | None = context.options.against
    if folder is None or not (folder / "benchmarks").is_dir():
        raise UserError(f"--against must name another checkout of this project, got {folder}")
    there = ["env", f"--chdir={folder.resolve()}", f"PYTHONPATH={folder.resolve()}:{folder.resolve() / 'client'}"]
    workload, cache = asdict(context.workload), str(context.cache / "against")
    printed = harness.output_of([*there, *program("workload:print_bundle", workload=workload, cache=cache)])
    bundle = Path(printed.strip().splitlines()[-1])
    jobs: dict[str, Job] = {}
    for search, size in SEARCHES.items():
        together = context.workload.job(NUM_TRIED // size, beam_size=size, batch_size=NUM_ROWS // size)
        jobs[f"{search}, {NUM_ROWS} rows"] = together
        jobs[f"{search}, 1 sentence"] = replace(together, num_sentences=NUM_ALONE // size, batch_size=1)
    rows: list[list[Cell]] = []
    for precision in PRECISIONS:
        decoders = own_decoder(context.bundle, precision), own_decoder(bundle, precision, name="other", prefix=there)
        measured = harness.measure([each.system(jobs, context.visit_seconds) for each in decoders], context.num_rounds)
        for point in jobs:
            new, old = (m for m in measured if m.problem or m.point == point)
            cells = [cell for m in (new, old) for cell in (m.median("speed"), harness.spread(m))]
            rows.append([f"{precision}, {point}", *cells, f"{new.median('speed') / old.median('speed'):.3f} x"])
    revision = ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(revision, capture_output=True, text=True, check=False).stdout.strip()
    columns = ["", "sentences/s", "slowest-fastest", "the other's", "slowest-fastest", "ratio"]
    return Part(columns=columns, rows=rows, note=f"The other: {commit or folder.name}.")
