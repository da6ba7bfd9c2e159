"""Measures what a simulation needs, on this host: an engine in process, a server, several engines side by side."""

import itertools
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import psutil

from attendant.runtime.bundle.bundle import Bundle, open_bundle
from attendant.runtime.bundle.manifest import Precision
from attendant.runtime.bundle_stepper import BundleStepper, open_stepper
from attendant.runtime.process import available_cpus
from attendant.server.bench.load import Load
from attendant.server.bench.measuring import layouts
from attendant.server.engine.engine import Engine
from attendant.server.engine.request import StepStats
from attendant.server.engine.scheduler import Budget
from benchmarks.capacity.costs import Costs, Grid
from benchmarks.capacity.observing import WORKERS, Loads
from benchmarks.command import Context
from benchmarks.decoding.bookkeeping import engine_requests, fill
from benchmarks.decoding.in_process import job_of, own_decoder, workers
from benchmarks.harness.measurement import say
from benchmarks.harness.process import cpu_seconds
from benchmarks.harness.results import this_machine
from benchmarks.job import Job, Sources, sentences
from benchmarks.serving.payloads import generate_requests, real_work
from benchmarks.serving.servers import Running, attendant_server, growth, running

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
ENCODED = (1, 2, 4, 8, 16, 32, 64)
WIDTHS = (8, 24, 48, 80)
NUM_ROUNDS = 16
NUM_ENCODINGS = 2
STEPS = 30
"""Of a request: one in so many of those that run ends with each step."""

CLIENTS = 16
WIDEST = 48
"""Of the sources that are stepped together, as a rule; a step hardly depends on it."""

WARM_UP_SECONDS = 1.0

NUM_TURNS = 3


def measured_costs(context: Context, precision: Precision, seconds: float) -> Costs:
    """The costs of the benchmarks' model, and how servers of it do.

    Costs and loads take turns, since the speed of a host may change within minutes.

    Args:
        seconds: of each closed loop in each turn, and of each number of engines side by side.
    """
    bundle = open_bundle(context.bundle)
    stepper = open_stepper(bundle, precision, "cpu", 1)
    rows, encoded = (ROWS[:3], ENCODED[:2]) if context.quick else (ROWS, ENCODED)
    encodings: Samples[float] = defaultdict(list)
    rounds: Samples[list[StepStats]] = defaultdict(list)
    served: dict[int, list[_Served]] = defaultdict(list)
    speeds: dict[int, list[float]] = defaultdict(list)
    loads = Loads(seconds)
    with ExitStack() as exits:
        requests = generate_requests(real_work(context))
        server = partial(attendant_server, context, requests=requests, precision=precision)
        servers = {
            number: exits.enter_context(running(server(num_workers=number, num_threads=number))) for number in WORKERS
        }
        for run in servers.values():
            run.load(Load(kind="closed", num_clients=CLIENTS, seconds=WARM_UP_SECONDS))
        for turn in range(NUM_TURNS):
            say(f"turn {turn + 1} of {NUM_TURNS} ...")
            for number, width in itertools.product(encoded, WIDTHS):
                encodings[number, width] += _encodings(bundle, stepper, number, width)
            for number, width in itertools.product(rows, WIDTHS):
                rounds[number, width].append(_rounds(bundle, stepper, number, width))
            for number, run in servers.items():
                served[number].append(_served(run, seconds))
                loads.ask(run, number)
            for number, speed in _speeds(context, precision, seconds).items():
                speeds[number].append(speed)
    encode = _grid(encoded, lambda *size: statistics.median(encodings[size]))
    step = _grid(rows, lambda *size: statistics.median(map(_step_seconds, itertools.chain(*rounds[size]))))
    change = _grid(rows, lambda *size: statistics.median(_change(turn, encode, size[1]) for turn in rounds[size]))
    beside = {
        number: number * statistics.median(one / several for one, several in zip(speeds[1], found, strict=True))
        for number, found in speeds.items()
    }
    # Of an odd number of turns, the middle one.
    in_server = {
        number: sorted(turns, key=lambda one: one.round_seconds)[NUM_TURNS // 2] for number, turns in served.items()
    }
    machine = this_machine()
    return Costs(
        measured=f"{bundle.manifest.name} {precision}, {machine.cpu}, {machine.num_cores} cores, {machine.date}",
        step=step,
        encode=encode,
        change=change,
        round_seconds={
            number: max(0.0, one.round_seconds - beside[number] * step.at(one.num_rows, WIDEST))
            for number, one in in_server.items()
        },
        call_seconds=in_server[1].call_seconds,
        generator_seconds=in_server[1].generator_seconds,
        beside=beside,
        observed=loads.observed(),
    )


Sample = TypeVar("Sample")
Samples = dict[tuple[int, int], list[Sample]]
"""By rows and width."""

Measured = Callable[[int, int], float]
"""Seconds of so many rows and a width."""


def _grid(rows: Sequence[int], measured: Measured) -> Grid:
    seconds = tuple(tuple(measured(number, width) for width in WIDTHS) for number in rows)
    return Grid(rows=tuple(rows), widths=WIDTHS, seconds=seconds)


def _sources(bundle: Bundle, width: int) -> Sources:
    """Random ones of one length."""
    return sentences(Job(64, width, bundle.manifest.source.vocabulary_size))


def _engine(bundle: Bundle, stepper: BundleStepper) -> Engine:
    budget = Budget(max_rows=max(ROWS), max_source_positions=max(ROWS) * max(WIDTHS))
    return Engine(stepper, budget, bundle.manifest.special_ids)


def _encodings(bundle: Bundle, stepper: BundleStepper, number: int, width: int) -> list[float]:
    """Seconds of so many sources, encoded together."""
    found = []
    for _ in range(NUM_ENCODINGS):
        engine = _engine(bundle, stepper)
        fill(engine, engine_requests(_sources(bundle, width), itertools.repeat(2)), number)
        found.append(engine.step().stats.phase_seconds["encode"])
    return found


def _rounds(bundle: Bundle, stepper: BundleStepper, number: int, width: int) -> list[StepStats]:
    """An engine in which so many requests run while others come and go."""
    engine, found = _engine(bundle, stepper), []
    first = (2 + place * STEPS // number for place in range(number))
    requests = engine_requests(_sources(bundle, width), itertools.chain(first, itertools.repeat(STEPS)))
    for _ in range(1 + NUM_ROUNDS):
        fill(engine, requests, number)
        found.append(engine.step().stats)
    return found[1:]


def _step_seconds(stats: StepStats) -> float:
    return sum(stats.phase_seconds.get(phase, 0.0) for phase in ("admit", "step", "search"))


def _change(rounds: Sequence[StepStats], encode: Grid, width: int) -> float:
    """The mean of what a round took for rows that left, and for joining those that were encoded."""
    found = []
    for before, stats in itertools.pairwise(rounds):
        if stats.num_encoded and stats.num_encoded < stats.num_rows:
            found.append(max(0.0, stats.phase_seconds["encode"] - encode.at(stats.num_encoded, width)))
        if stats.num_rows < before.num_rows + stats.num_encoded:
            found.append(before.phase_seconds["select"])
    return statistics.fmean(found) if found else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Served:
    """Processor time of a server under CLIENTS.

    Attributes:
        round_seconds: of a worker for a round, but for encoding and for rows that leave and join.
        num_rows: of a round, in the mean.
        call_seconds: of the server's process for a call.
        generator_seconds: of the load generator for a call.
    """

    round_seconds: float
    num_rows: float
    call_seconds: float
    generator_seconds: float


def _served(run: Running, seconds: float) -> _Served:
    front = [psutil.Process(run.process.pid)]

    def processor_seconds() -> tuple[float, float, float]:
        return cpu_seconds(front), run.process.cpu_seconds(), run.generator.cpu_seconds()

    metrics, before = run.metrics(), processor_seconds()
    figures = run.load(Load(kind="closed", num_clients=CLIENTS, seconds=seconds))
    after, grown = processor_seconds(), growth(metrics, run.metrics())
    front_seconds, all_seconds, generator_seconds = (end - begin for begin, end in zip(before, after, strict=True))
    others = sum(grown[f"attendant_step_seconds_sum{{{phase}}}"] for phase in ("encode", "select"))
    num_rounds = grown["attendant_steps_total"]
    return _Served(
        round_seconds=(all_seconds - front_seconds - others) / num_rounds,
        num_rows=grown["attendant_step_rows_sum"] / num_rounds,
        call_seconds=front_seconds / figures["answers"],
        generator_seconds=generator_seconds / figures["answers"],
    )


def _speeds(context: Context, precision: Precision, seconds: float) -> dict[int, float]:
    """Sentences per second of several engines side by side, by their number."""
    speeds, job = {}, job_of(context)
    for number in (one.workers for one in layouts(available_cpus())):
        with workers(own_decoder(context, precision, num_workers=number)) as pool:
            speeds[number] = pool.run(pool.fastest(job, seconds, [job.batch_size]))["speed"]
    return speeds
