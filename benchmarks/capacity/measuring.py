"""Measures what a simulation needs, on this host: an engine in process, a server, several engines side by side."""

import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

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
from benchmarks.command import Context
from benchmarks.decoding.in_process import Decoder, workers
from benchmarks.harness.process import cpu_seconds
from benchmarks.harness.results import this_machine
from benchmarks.job import Job, sentences
from benchmarks.serving.payloads import UNARY, real_payloads
from benchmarks.serving.servers import attendant_server, running

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
ENCODED = (1, 2, 4, 8, 16, 32, 64)
WIDTHS = (8, 24, 48, 80)
NUM_ROUNDS = 24
NUM_ENCODINGS = 3
STEPS = 30
"""Of a request: one in so many of those that run ends with each step."""

CLIENTS = 32


def measured_costs(context: Context, precision: Precision, seconds: float) -> Costs:
    """The costs of the benchmarks' model.

    Args:
        seconds: of the load on the server, and of each number of engines side by side.
    """
    bundle = open_bundle(context.bundle)
    stepper = open_stepper(bundle, precision, "cpu", 1)
    rows, encoded = (ROWS[:3], ENCODED[:2]) if context.quick else (ROWS, ENCODED)
    context.say("encodings ...")
    encode = _grid(encoded, lambda number, width: _encoding(bundle, stepper, number, width))
    context.say("steps ...")
    rounds = {(number, width): _rounds(bundle, stepper, number, width) for number in rows for width in WIDTHS}
    step = _grid(rows, lambda number, width: statistics.median(map(_step_seconds, rounds[number, width])))
    change = _grid(rows, lambda number, width: _change(rounds[number, width], encode, width))
    context.say("a server ...")
    round_seconds, call_seconds, generator_seconds = _served(context, precision, seconds)
    context.say("engines side by side ...")
    machine = this_machine()
    return Costs(
        measured=f"{bundle.manifest.name} {precision}, {machine.cpu}, {machine.num_cores} cores, {machine.date}",
        step=step,
        encode=encode,
        change=change,
        round_seconds=round_seconds,
        call_seconds=call_seconds,
        generator_seconds=generator_seconds,
        beside=_beside(context, precision, seconds),
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


def _encoding(bundle: Bundle, stepper: BundleStepper, number: int, width: int) -> float:
    """So many sources, encoded together."""
    found = []
    for _ in range(NUM_ENCODINGS):
        engine = _engine(bundle, stepper)
        for request in _requests(bundle, width, [2] * number):
            engine.submit(request)
        found.append(engine.step().stats.phase_seconds["encode"])
    return statistics.median(found)


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


def _served(context: Context, precision: Precision, seconds: float) -> tuple[float, float, float]:
    """Of a server with one worker: what a round takes outside the engine, a call in the server's process, and a call
    in the load generator; all of it processor time.
    """
    server = attendant_server(
        context, payloads=real_payloads(context), num_workers=1, num_threads=1, precision=precision
    )
    load = Load(kind="closed", num_clients=CLIENTS, seconds=seconds)
    with running(server) as run:
        run.load(load)
        front = [psutil.Process(run.process.pid)]

        def processor_seconds() -> tuple[float, float, float]:
            return cpu_seconds(front), run.process.cpu_seconds(), run.generators[UNARY].cpu_seconds()

        metrics, before = run.metrics(), processor_seconds()
        answers = run.load(load)["answers"]
        grown = {name: value - metrics.get(name, 0.0) for name, value in run.metrics().items()}
        after = processor_seconds()
    front_seconds, all_seconds, generator_seconds = (end - begin for begin, end in zip(before, after, strict=True))
    in_engine, num_rounds = grown["attendant_step_seconds_sum"], grown["attendant_steps_total"]
    outside = max(0.0, all_seconds - front_seconds - in_engine) / num_rounds
    return outside, front_seconds / answers, generator_seconds / answers


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
