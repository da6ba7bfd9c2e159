"""Measures decoding without a server: toolkits in worker processes, on the same sentences, in turns; and the engine."""

import itertools
import random
import statistics
import subprocess
import time
import timeit
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.bundle.manifest import Precision
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.errors import UserError
from attendant.runtime.onnx.stepper import OnnxStepper
from attendant.server.engine.engine import Engine
from attendant.server.engine.messages import EngineRequest, Priority
from attendant.server.engine.scheduler import Budget
from benchmarks.harness import (
    KEEP_MEMORY,
    Columns,
    Process,
    System,
    Visit,
    Visits,
    figures,
    measure,
    output_of,
    part_of,
    spread_of,
)
from benchmarks.job import Job, Sources, program
from benchmarks.own_worker import GraphCalls
from benchmarks.results import Cell, Part
from benchmarks.workload import Context, Work, Workload, equal_work

BEAM_SIZE = 4
SEARCHES = {"greedy": 1, f"beam {BEAM_SIZE}": BEAM_SIZE}
PRECISIONS: tuple[Precision, ...] = ("int8", "fp32")
NUM_WORKERS = 2
NUM_ALONE = 20
"""Sentences decoded one after the other in a visit, at least."""

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
        key, name, about: as in `System`.
        command: makes what is missing; returns the command of a worker process, which answers jobs (job.py). Raises
            Unavailable.
        num_workers: processes that share each job.
        batch_sizes: candidates; the fastest is the system's best setting.
    """

    key: str
    name: str
    command: Callable[[], Sequence[str]]
    num_workers: int = 1
    batch_sizes: Sequence[int] = (64, 128)
    about: str = ""

    def system(self, jobs: Mapping[str, Job], seconds: float) -> System:
        """Returns a system that runs each job in every round, for about `seconds`; a job without a batch size takes the
        fastest one.
        """

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
    """Returns Attendant's own decoding, or with `bare` the same calls of its graphs, replayed without search."""
    return Decoder(
        key=f"{'bare' if bare else 'attendant'}_{precision}",
        name=f"{'bare graphs' if bare else 'Attendant'} {precision}, {layout(num_workers, num_threads)}",
        command=lambda: program(
            "own_worker:work", path=str(context.bundle), precision=precision, num_threads=num_threads, bare=bare
        ),
        num_workers=num_workers,
        batch_sizes=(32, 64, 128, 256),
    )


def layout(num_workers: int, num_threads: int = 1) -> str:
    """Returns text on the worker processes and the threads of each."""
    counts = ((num_workers, "worker"), (num_threads, "thread"))
    return " x ".join(f"{number} {noun}{'' if number == 1 else 's'}" for number, noun in counts)


@contextmanager
def workers(decoder: Decoder) -> Iterator["Workers"]:
    """Runs the worker processes. Raises Unavailable."""
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
        """Shares a job among the workers and waits for all. Raises Unavailable.

        Returns:
            Sentences per second, the workers' processor time per sentence, the median time of a batch.
        """
        began = time.perf_counter()
        for number, process in enumerate(self._processes):
            process.ask(asdict(job.share(number, len(self._processes))))
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
        """Returns the job with the fastest batch size, and as many sentences as take `seconds`.

        Args:
            job: its num_sentences is the size of a trial.
        """
        speeds = {size: self._warm_speed(self._sized(job, size)) for size in batch_sizes}
        best = max(speeds, key=lambda size: speeds[size])
        return self._sized(replace(job, num_sentences=int(speeds[best] * seconds)), best)

    def _sized(self, job: Job, batch_size: int) -> Job:
        """Rounds the job to whole batches for every worker, at least one."""
        group = batch_size * len(self._processes)
        return replace(job, batch_size=batch_size, num_sentences=max(1, round(job.num_sentences / group)) * group)

    def _warm_speed(self, job: Job) -> float:
        speed = self.run(job)["speed"]
        for _ in range(MAX_WARM_UPS):
            before, speed = speed, self.run(job)["speed"]
            if speed < before * WARM:
                return max(before, speed)
        return speed


def throughput(context: Context, decoders: Sequence[Decoder], beam_size: int) -> Part:
    """Measures many sentences at once. Of decoders with one key, the fastest is compared."""
    job = context.job(256 // beam_size, beam_size=beam_size, batch_size=0)
    systems = [decoder.system({"": job}, context.visit_seconds) for decoder in decoders]
    columns: Columns = {
        "sentences/s": "speed",
        "slowest-fastest": spread_of("speed"),
        "batch": lambda m: f"{m.median('batch'):.0f}",
        "CPU ms/sentence": "cpu_ms",
        "remarks": lambda m: m.system.about,
    }
    return part_of(measure(systems, context.num_rounds), columns, best_by="speed")


def one_by_one(context: Context, decoders: Sequence[Decoder]) -> Part:
    """Measures one sentence after the other."""
    job = context.job(NUM_ALONE, batch_size=1)
    systems = [decoder.system({"": job}, context.visit_seconds / 4) for decoder in decoders]
    columns: Columns = {
        "ms": "ms",
        "CPU ms/sentence": "cpu_ms",
        "sentences": lambda m: f"{sum(m.samples['sentences']):,.0f}",
        "remarks": lambda m: m.system.about,
    }
    return part_of(measure(systems, context.num_rounds), columns)


def decoding(context: Context) -> Part:
    """Decoding in process.

    20 source positions and as many decoder steps. Bare graphs: the same calls of the graphs, replayed without anything
    between them, which is the limit of any engine. Each system uses its fastest batch size.
    """
    decoders = [
        _with_own_key(own_decoder(context, precision, num_workers=num_workers, num_threads=num_threads, bare=bare))
        for precision in PRECISIONS
        for num_workers, num_threads in ([(1, 1)] if context.quick else [(1, 1), (2, 1), (1, 2)])
        for bare in (False, True)
    ]
    parts = {search: throughput(context, decoders, beam_size) for search, beam_size in SEARCHES.items()}
    return Part(
        columns=["search", *parts["greedy"].columns],
        rows=[[search, *row] for search, part in parts.items() for row in part.rows],
        figures={f"{search}, {name}": value for search, part in parts.items() for name, value in part.figures.items()},
    )


def alone(context: Context) -> Part:
    """One sentence alone, in process.

    Median latency, greedy. Bare graphs: the time without search and bookkeeping. Reading the weights: the time in which
    one core reads the int8 weights of all steps, and does nothing else.
    """
    decoders = [
        _with_own_key(own_decoder(context, precision, num_threads=num_threads, bare=bare))
        for precision in PRECISIONS
        for bare in (False, True)
        for num_threads in (1, 2)
    ]
    part, bound = one_by_one(context, decoders), reading_ms(context.workload)
    row: list[Cell] = ["reading the weights, int8", bound, None, None, None]
    return replace(part, rows=[*part.rows, row], figures=part.figures | {"reading_ms": bound})


def _with_own_key(decoder: Decoder) -> Decoder:
    """Gives the figures of each setting names of their own."""
    return replace(decoder, key=decoder.name)


def reading_ms(workload: Workload) -> float:
    """Returns the time in which one core reads the int8 weights of a sentence's steps: a lower bound at one row.

    The bytes of a step's weights are summed, again and again. The encoder's, a fiftieth of all reading, are left out.
    """
    hidden = workload.hidden_size
    inputs = [workload.embedding_size + hidden, *[hidden] * (workload.num_layers - 1)]
    num_bytes = sum((width + hidden) * 4 * hidden for width in inputs)
    num_bytes += 2 * hidden * hidden + hidden * workload.vocabulary_size
    weights = np.zeros(num_bytes // 8, np.int64)
    seconds = timeit.repeat(lambda: np.add.reduce(weights), number=1, repeat=200)
    return 1e3 * workload.num_tokens * statistics.median(seconds)


def bookkeeping(context: Context) -> Part:
    """Bookkeeping outside the graphs.

    The server's engine with 64 rows in every step, on one thread, without gRPC; requests arrive and finish all the
    time. A round consists of scheduling, encoding new requests, one step of all rows, search, and removing finished
    requests. Outside: the whole round without the calls of the graphs.
    """
    systems = [engine_system(context, precision, search) for precision in PRECISIONS for search in SEARCHES]
    columns: Columns = {
        "ms per round": "ms",
        "of it outside": lambda m: m.median("ms") * m.median("share_64"),
        "share": lambda m: f"{100 * m.median('share_64'):.1f} %",
    }
    return part_of(measure(systems, context.num_rounds), columns, title="")


def engine_system(
    context: Context,
    precision: Precision,
    search: str,
    *,
    num_rows: int = NUM_ROWS,
    work: Callable[[Workload], Work] = equal_work,
    path: Path | None = None,
) -> System:
    """Returns an engine that always has as many requests as it has room for.

    Its figures: the milliseconds of a round, the share of them outside the graphs, and the milliseconds of the graphs
    per request.

    Args:
        path: path of the bundle. If None, the context's.
    """
    num_tokens, num_requests = context.workload.num_tokens, num_rows // SEARCHES[search]
    num_rounds = (4 if context.quick else 20) * num_tokens

    def start() -> Iterator[Visits]:
        bundle, graphs = open_bundle(path or context.bundle), GraphCalls()
        stepper = OnnxStepper(bundle, precision, "cpu", 1, open_session=graphs.open)
        budget = Budget(max_rows=num_rows, max_source_positions=1 << 20)
        engine = Engine(stepper, budget, bundle.manifest.special_ids)
        # The first requests end one after the other, so that later some come and go at every step.
        generator, pairs = random.Random(1), work(context.workload)
        first_steps = [generator.randint(2, num_tokens) for _ in range(num_requests)]
        num_steps = itertools.chain(first_steps, itertools.cycle([steps for _, steps in pairs]))
        requests = engine_requests([source for source, _ in pairs], num_steps, SEARCHES[search])
        scheduler, priority = engine.scheduler, Priority.INTERACTIVE

        def visit(number: int) -> dict[str, float]:
            graphs.seconds = seconds = 0.0
            num_answers = 0
            for _ in range(num_rounds):
                while scheduler.num_running(priority) + scheduler.num_waiting(priority) < num_requests:
                    engine.submit(next(requests))
                began = time.perf_counter()
                num_answers += len(engine.step().outcomes)
                seconds += time.perf_counter() - began
            milliseconds = {"ms": 1e3 * seconds / num_rounds, "graphs_ms": 1e3 * graphs.seconds / num_answers}
            return {"share_64": 1 - graphs.seconds / seconds, **milliseconds}

        visit(0)  # warms up
        yield {"": visit}

    return System(key=f"{precision}_{search.replace(' ', '_')}", name=f"{precision}, {search}", start=start)


def engine_requests(sources: Sources, num_steps: Iterable[int], beam_size: int = 1) -> Iterator[EngineRequest]:
    """Yields the sources in turn, again and again, each with the next number of steps."""
    for key, (source, steps) in enumerate(zip(itertools.cycle(sources), num_steps)):
        options = DecodingOptions(beam_size=beam_size, max_length=steps - 1)
        yield EngineRequest(key, tuple(source), options, time.monotonic())


def against(context: Context) -> Part:
    """Comparison with another checkout.

    Decoding in process on one thread by this code and by that of another checkout, each with its own bundle, in turns;
    medians of the rounds and their ratio.
    """
    folder: Path | None = context.options.against
    if folder is None or not (folder / "benchmarks").is_dir():
        raise UserError(f"--against must name another checkout of this project, got {folder}")
    jobs: dict[str, Job] = {}
    for search, size in SEARCHES.items():
        together = context.job(256 // size, beam_size=size, batch_size=NUM_ROWS // size)
        jobs[f": {search}, {NUM_ROWS} rows"] = together
        jobs[f": {search}, 1 sentence"] = replace(together, num_sentences=NUM_ALONE // size, batch_size=1)
    pairs = [(own_decoder(context, name), _other_decoder(context, folder.resolve(), name)) for name in PRECISIONS]
    systems = [decoder.system(jobs, context.visit_seconds) for pair in pairs for decoder in pair]
    measurements = measure(systems, context.num_rounds)
    revision = ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(revision, capture_output=True, text=True, check=False).stdout.strip()
    columns = ["", "sentences/s", "slowest-fastest", "the other's", "slowest-fastest", "ratio"]
    part = Part(columns=columns, figures=figures(measurements), note=f"The other: {commit or folder.name}.")
    spread = spread_of("speed")
    for precision, ours, theirs in zip(PRECISIONS, measurements[::2], measurements[1::2], strict=True):
        for point in jobs:
            new, old = ours.at(point), theirs.at(point)
            cells = [cell for m in (new, old) for cell in (m.median("speed"), spread(m))]
            ratio = f"{new.median('speed') / old.median('speed'):.3f} x"
            part.rows.append([f"{precision}, {point.removeprefix(': ')}", *cells, ratio])
    return part


def _other_decoder(context: Context, folder: Path, precision: str) -> Decoder:
    """Returns Attendant by the code of another checkout, which makes its own bundle and answers the same jobs."""
    python = ["env", f"--chdir={folder}", f"PYTHONPATH={folder}:{folder / 'client'}"]

    def command() -> Sequence[str]:
        workload, cache = asdict(context.workload), str(context.cache / "against")
        lines = output_of([*python, *program("workload:print_bundle", workload=workload, cache=cache)])
        path = lines.strip().splitlines()[-1]
        return [*python, *program("own_worker:work", path=path, precision=precision, num_threads=1)]

    return Decoder(key=f"other_{precision}", name=f"the other checkout, {precision}", command=command)
