"""Measures what a simulation needs, on this host: an engine in process, a server, several engines side by side."""

import itertools
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TypeVar

import psutil

from attendant.runtime.bundle.bundle import Bundle, open_bundle
from attendant.runtime.bundle.manifest import Precision
from attendant.runtime.bundle_stepper import BundleStepper, open_stepper
from attendant.runtime.cpu import available_cpus
from attendant.runtime.decoding.options import DecodingOptions
from attendant.server.bench.load import Load
from attendant.server.engine.engine import Engine
from attendant.server.engine.queueing.scheduler import Budget
from attendant.server.engine.request import EngineRequest, Priority, StepStats
from benchmarks.capacity.costs import Costs, Grid
from benchmarks.capacity.observing import WORKERS, Loads, asked
from benchmarks.command import Context
from benchmarks.decoding.in_process import Decoder, workers
from benchmarks.harness.process import cpu_seconds
from benchmarks.harness.results import this_machine
from benchmarks.job import Job, sentences
from benchmarks.serving.payloads import UNARY, real_payloads
from benchmarks.serving.servers import Running, Server, attendant_server, running

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
    loads, served = Loads(seconds), []
    with ExitStack() as exits:
        servers = {number: exits.enter_context(running(_server(context, precision, number))) for number in WORKERS}
        for run in servers.values():
            run.load(Load(kind="closed", num_clients=CLIENTS, seconds=WARM_UP_SECONDS))
        for turn in range(NUM_TURNS):
            context.say(f"turn {turn + 1} of {NUM_TURNS} ...")
            for number, width in itertools.product(encoded, WIDTHS):
                encodings[number, width] += _encodings(bundle, stepper, number, width)
            for number, width in itertools.product(rows, WIDTHS):
                rounds[number, width].append(_rounds(bundle, stepper, number, width))
            served.append(_served(servers[1], seconds))
            for number, run in servers.items():
                loads.ask(run, number)
    context.say("engines side by side ...")
    encode = _grid(encoded, lambda *size: statistics.median(encodings[size]))
    step = _grid(rows, lambda *size: statistics.median(map(_step_seconds, itertools.chain(*rounds[size]))))
    change = _grid(rows, lambda *size: statistics.median(_change(turn, encode, size[1]) for turn in rounds[size]))
    in_server = min(served, key=lambda one: one.others_share)
    machine = this_machine()
    return Costs(
        measured=f"{bundle.manifest.name} {precision}, {machine.cpu}, {machine.num_cores} cores, {machine.date}",
        step=step,
        encode=encode,
        change=change,
        round_seconds=in_server.beside_step(step),
        call_seconds=in_server.call_seconds,
        generator_seconds=in_server.generator_seconds,
        beside=_beside(context, precision, seconds),
        observed=loads.observed(),
    )


Sample = TypeVar("Sample")
Samples = dict[tuple[int, int], list[Sample]]
"""By rows and width."""


def _server(context: Context, precision: Precision, num_workers: int) -> Server:
    return attendant_server(
        context,
        payloads=real_payloads(context),
        num_workers=num_workers,
        num_threads=num_workers,
        precision=precision,
    )


Measured = Callable[[int, int], float]
"""Seconds of so many rows and a width."""


def _grid(rows: Sequence[int], measured: Measured) -> Grid:
    seconds = tuple(tuple(measured(number, width) for width in WIDTHS) for number in rows)
    return Grid(rows=tuple(rows), widths=WIDTHS, seconds=seconds)


def _requests(bundle: Bundle, width: int, num_steps: Iterable[int]) -> Iterator[EngineRequest]:
    """Random sources of one length, each with its number of steps."""
    size = bundle.manifest.source.vocabulary_size
    sources = itertools.cycle(sentences(Job(num_sentences=64, num_tokens=width, vocabulary_size=size)))
    for key, (source, steps) in enumerate(zip(sources, num_steps)):  # noqa: B905  # the sources never end
        yield EngineRequest(key, tuple(source), DecodingOptions(max_length=steps - 1), time.monotonic())


def _engine(bundle: Bundle, stepper: BundleStepper) -> Engine:
    budget = Budget(max_rows=max(ROWS), max_source_positions=max(ROWS) * max(WIDTHS))
    return Engine(stepper, budget, bundle.manifest.special_ids)


def _encodings(bundle: Bundle, stepper: BundleStepper, number: int, width: int) -> list[float]:
    """Seconds of so many sources, encoded together."""
    found = []
    for _ in range(NUM_ENCODINGS):
        engine = _engine(bundle, stepper)
        for request in _requests(bundle, width, [2] * number):
            engine.submit(request)
        found.append(engine.step().stats.phase_seconds["encode"])
    return found


def _rounds(bundle: Bundle, stepper: BundleStepper, number: int, width: int) -> list[StepStats]:
    """An engine in which so many requests run while others come and go."""
    engine, found = _engine(bundle, stepper), []
    first = (2 + place * STEPS // number for place in range(number))
    requests = _requests(bundle, width, itertools.chain(first, itertools.repeat(STEPS)))
    for _ in range(1 + NUM_ROUNDS):
        while engine.scheduler.num_running + engine.scheduler.num_waiting(Priority.INTERACTIVE) < number:
            engine.submit(next(requests))
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
    """Processor time of a server with one worker, under CLIENTS.

    Attributes:
        round_seconds: of the worker for a round, but for encoding and for rows that leave and join.
        num_rows: of a round, in the mean.
        call_seconds: of the server's process for a call.
        generator_seconds: of the load generator for a call.
        others_share: of a core, that programs beside it took.
    """

    round_seconds: float
    num_rows: float
    call_seconds: float
    generator_seconds: float
    others_share: float

    def beside_step(self, step: Grid) -> float:
        """What a round takes in a server and not in an engine that has the processor and its caches to itself."""
        return max(0.0, self.round_seconds - step.at(self.num_rows, WIDEST))


def _served(run: Running, seconds: float) -> _Served:
    front = [psutil.Process(run.process.pid)]

    def processor_seconds() -> tuple[float, float, float]:
        return cpu_seconds(front), run.process.cpu_seconds(), run.generators[UNARY].cpu_seconds()

    metrics, before = run.metrics(), processor_seconds()
    figures, others_share = asked(run, Load(kind="closed", num_clients=CLIENTS, seconds=seconds))
    grown = {name: value - metrics.get(name, 0.0) for name, value in run.metrics().items()}
    after = processor_seconds()
    front_seconds, all_seconds, generator_seconds = (end - begin for begin, end in zip(before, after, strict=True))
    others = sum(grown[f"attendant_step_seconds_sum{{{phase}}}"] for phase in ("encode", "select"))
    num_rounds = grown["attendant_steps_total"]
    return _Served(
        round_seconds=(all_seconds - front_seconds - others) / num_rounds,
        num_rows=grown["attendant_step_rows_sum"] / num_rounds,
        call_seconds=front_seconds / figures["answers"],
        generator_seconds=generator_seconds / figures["answers"],
        others_share=others_share,
    )


def _beside(context: Context, precision: Precision, seconds: float) -> dict[int, float]:
    """How many times as long a sentence takes in each of several engines as in one alone."""
    path = str(context.bundle)
    command = sys.executable, "-m", "benchmarks.decoding.attendant_worker", path, precision, "1"
    speeds = {}
    for number in sorted({1, *(2**power for power in range(1, 7) if 2**power <= available_cpus()), available_cpus()}):
        with workers(Decoder(key="", name="", command=lambda: command, num_workers=number)) as pool:
            job = Job(64 * number, context.workload.num_tokens, context.workload.vocabulary_size)
            job = replace(
                job, num_sentences=64 * number * max(1, round(pool.run(job)["speed"] * seconds / 64 / number))
            )
            speeds[number] = pool.run(job)["speed"]
    return {number: number * speeds[1] / speed for number, speed in speeds.items()}
