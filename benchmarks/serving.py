"""Measures servers under load: the cost of serving, the parts of a request's time, random arrivals."""

import itertools
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache, partial
from statistics import fmean
from typing import Any

import numpy as np

from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.bundle.manifest import SpecialIds
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.onnx.stepper import OnnxStepper
from attendant.runtime.stepper import Stepper
from attendant.server.bench.load import MESSAGE_SIZE, Answered, Load
from attendant.server.engine.engine import Engine
from attendant.server.engine.messages import EngineRequest
from attendant.server.engine.scheduler import Budget, Scheduler
from benchmarks.decoding import NUM_WORKERS, own_decoder
from benchmarks.harness import COLUMNS, Columns, Samples, System, Visits, measure, part_of
from benchmarks.own_worker import RequestLevelScheduler
from benchmarks.results import Cell, Part
from benchmarks.servers import (
    MANY_CLIENTS,
    Server,
    attendant_server,
    closed,
    empty_service,
    load_generator,
    mean_of,
    requests_of,
    running,
    under,
)
from benchmarks.workload import Context, Work, equal_work, real_work

BULK_IN_FLIGHT = 2048
LEAD_SECONDS = 0.5  # Time from the start of bulk work to the first measured call, and from the last one to its end.


def first_token(context: Context) -> Part:
    """Time to the first token.

    64 clients in a closed loop, greedy. Each answer is one message (unary) or streamed. The times are until the first
    message of an answer, and until its last one.
    """
    loads = {"unary": closed(context), "streamed": closed(context, kind="stream")}
    return part_of(measure([under(attendant_server(context), loads)], context.num_rounds))


def overhead(context: Context) -> Part:
    """The cost of serving.

    Processor time of all the server's processes per sentence, compared with decoding in process with the mean number of
    rows of the server's steps; in turns. The empty grpc.aio service answers the same requests, and is the lower limit
    of any server based on it.
    """
    loads = {
        "unary calls, 64 clients": closed(context),
        "lists of 256, one client": closed(context, 1, "list"),
        "one bulk stream": closed(context, BULK_IN_FLIGHT, "bulk"),
        f"one bulk stream, {MESSAGE_SIZE} requests in a message": closed(context, BULK_IN_FLIGHT, "bulk-lists"),
    }
    server = attendant_server(context)
    with running(server) as run:
        num_rows = {load: max(1, round(run.load(loads[load])["step_rows"])) for load in loads}
    jobs = {load: context.workload.job(batch_size=number) for load, number in num_rows.items()}
    decoder = own_decoder(context.bundle, "int8", NUM_WORKERS)
    systems = [
        under(server, loads),
        decoder.system(jobs, context.visit_seconds),
        under(empty_service(server.requests), loads),
    ]
    return part_of(measure(systems, context.num_rounds))


PHASES = {
    "step": "steps: the graph",
    "search": "steps: search",
    "select": "steps: rows that leave",
    "encode": "others are encoded meanwhile",
    "admit": "admission",
}
"""The engine's work while a request is decoded, by the names of attendant_step_seconds."""


def request_time(context: Context) -> Part:
    """The parts of a request's time.

    Mean times of a unary call in a closed loop, by the server's metrics. Outside: the client's time beyond
    attendant_request_seconds. The server's process: the part of that metric beyond the engine's parts, including the
    time for which a worker holds an answer back. A running request waits for all the work of its engine, so its time is
    divided in the proportions of the engine's whole time.
    """
    loads = {
        "1 client": (equal_work, 1),
        f"{MANY_CLIENTS} clients": (equal_work, MANY_CLIENTS),
        f"{MANY_CLIENTS} clients, real lengths": (real_work, MANY_CLIENTS),
    }
    columns = []
    for work, num_clients in loads.values():
        with running(attendant_server(context, requests=requests_of(work(context.workload)))) as server:
            load = closed(context, num_clients)
            server.load(load)
            samples = server.load(load)
            columns.append(request_parts(1e3 * num_clients / samples["speed"], samples))
    rows: list[list[Cell]] = [[part, *(column[part] for column in columns)] for part in columns[0]]
    rows.append(["all", *(sum(column.values()) for column in columns)])
    return Part(columns=["ms per request", *loads], rows=rows, picture="request-time.svg")


def request_parts(latency: float, growth: Mapping[str, float]) -> dict[str, float]:
    """Divides a mean latency in ms into its parts, by the growth of the metrics under load."""
    request, queue, encode, decode = (
        1e3 * mean_of(f"attendant_{name}_seconds", growth) for name in ("request", "queue", "encode", "decode")
    )
    seconds = {phase: growth[f"attendant_step_seconds_sum{{{phase}}}"] for phase in PHASES}
    in_engine = {name: (encode + decode) * seconds[phase] / sum(seconds.values()) for phase, name in PHASES.items()}
    in_engine[PHASES["encode"]] -= encode
    return {
        "outside: gRPC, the client": max(0.0, latency - request),
        "the server's process": request - queue - encode - decode,
        "on the way to the engine, and waiting": queue,
        "its encoding": encode,
        **{name: max(0.0, milliseconds) for name, milliseconds in in_engine.items()},
    }


def priority(context: Context) -> Part:
    """Interactive requests alongside bulk work.

    10 unary calls per second, at random moments, alongside one bulk stream with 2,048 requests in flight.
    """
    server = attendant_server(context)
    calls = Load(kind="open", rate=10.0, seconds=12 * context.visit_seconds)
    bulk = Load(kind="bulk", num_clients=BULK_IN_FLIGHT, seconds=calls.seconds + 2 * LEAD_SECONDS)

    def start() -> Iterator[Visits]:
        with running(server) as run, load_generator(run.addresses["serving"], server.requests) as other:
            interactive = run.visit(calls)

            def loaded(number: int) -> Samples:
                other.ask(asdict(bulk))
                time.sleep(LEAD_SECONDS)
                samples, answered = interactive(number), Answered(**other.answer())
                return {**samples, "bulk_speed": len(answered.latencies) / answered.seconds}

            yield {"nothing else": interactive, "bulk work": loaded}

    system = System(name="interactive requests", start=start, about=server.about)
    return part_of(measure([system], context.num_rounds), {**COLUMNS, "bulk requests/s": "bulk_speed"})


FRACTIONS = (0.3, 0.5, 0.65, 0.8, 0.95)  # Rates of random arrivals, as fractions of the capacity.
LEAST_STEP = 1.07  # Rates that are nearer to another one than by this factor are left out.
NUM_ARRIVALS = 2000  # Arrivals of a visit, and of the model: 20 of them take longer than the p99.
BUDGET = Budget(max_rows=256, max_source_positions=1 << 16)
CAPACITY_CLIENTS = 192
P99_MS = 250.0  # The highest rate with at most this p99 is noted for each server.


def open_loop(context: Context) -> Part:
    """Poisson load, lengths of real sentences.

    One worker, one thread, int8, greedy; 5 to 80 source positions and steps. Latency counts from the planned moment of
    each arrival. Per request: the same server, in which no request joins a running batch. Capacity: requests per
    second of 192 clients in a closed loop. Modelled: the same scheduler in virtual time, in which only calls of the
    model take time, as much as they do in a process that has a core of its own.
    """
    work = real_work(context.workload)
    options = "--precision int8 --workers 1 --threads 1"
    server = partial(attendant_server, context, options, requests=requests_of(work))
    schedulers = {"batching per step": Scheduler, "batching per request": RequestLevelScheduler}
    servers = [server(name=name, per_request=kind is not Scheduler) for name, kind in schedulers.items()]
    bundle, num_arrivals = open_bundle(context.bundle), _num_arrivals(context)
    stepper, special_ids = OnnxStepper(bundle, "int8", "cpu", 1), bundle.manifest.special_ids

    @cache
    def model(name: str, point: str) -> tuple[float, float]:
        rate = float(point.removesuffix("/s"))
        return modelled(stepper, special_ids, work, rate, num_arrivals, schedulers[name])

    columns: Columns = {
        **COLUMNS,
        "modelled p50 ms": lambda m: model(m.system.name, m.point)[0],
        "modelled p99 ms": lambda m: model(m.system.name, m.point)[1],
    }
    return open_loops(context, servers, columns)


class TimedStepper:
    """A stepper in virtual time, in which only its own calls take time: their processor time."""

    def __init__(self, stepper: Stepper, clock: Callable[[], float]) -> None:
        self.now = 0.0
        self._stepper = stepper
        self._clock = clock

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            began = self._clock()
            result = getattr(self._stepper, method)(*arguments, **options)
            self.now += self._clock() - began
            return result

        return timed


def modelled(
    stepper: Stepper,
    special_ids: SpecialIds,
    work: Work,
    rate: float,
    num_arrivals: int,
    scheduler: Callable[[Budget], Scheduler],
    clock: Callable[[], float] = time.thread_time,
) -> tuple[float, float]:
    """Returns the median and the 99th percentile of the latency in ms, from arrival to answer, in virtual time. `clock`
    measures the stepper's calls.
    """
    timed: Any = TimedStepper(stepper, clock)
    engine = Engine(timed, BUDGET, special_ids, lambda: timed.now, scheduler)
    generator = random.Random(1)
    arrivals = list(itertools.accumulate(generator.expovariate(rate) for _ in range(num_arrivals)))
    seconds: list[float] = []
    num_submitted = 0
    while len(seconds) < num_arrivals:
        if not engine.has_work:
            timed.now = max(timed.now, arrivals[num_submitted])
        while num_submitted < num_arrivals and arrivals[num_submitted] <= timed.now:
            source, num_steps = work[num_submitted % len(work)]
            options = DecodingOptions(max_length=max(1, num_steps - 1))
            engine.submit(EngineRequest(num_submitted, tuple(source), options, arrivals[num_submitted]))
            num_submitted += 1
        seconds += [timed.now - arrivals[key] for key, _ in engine.step().outcomes]
    p50, p99 = (1e3 * np.percentile(seconds, (50, 99))).tolist()
    return p50, p99


def open_loops(context: Context, servers: Sequence[Server], columns: Columns = COLUMNS) -> Part:
    """Loads all servers by Poisson arrivals at the same rates, each up to its capacity."""
    full, num_arrivals = closed(context, CAPACITY_CLIENTS), _num_arrivals(context)
    counted = measure([under(server, {"": full}) for server in servers], num_rounds=1)
    capacities = {m.system.name: m.median("speed") for m in counted if not m.problem}
    rates = {f"{rate:g}/s": rate for rate in _rates(capacities.values())}

    def arrivals(server: Server) -> System:
        # Above the capacity a queue only grows.
        loads = {
            point: Load(kind="open", seconds=num_arrivals / rate, rate=rate, num_clients=CAPACITY_CLIENTS)
            for point, rate in rates.items()
            if rate <= max(FRACTIONS) * capacities[server.name] + 0.1
        }
        return under(server, loads)

    measured = measure([arrivals(server) for server in servers if server.name in capacities], context.num_rounds)
    notes = []
    for name, capacity in capacities.items():
        p99s = [(rates[m.point], m.median("p99")) for m in measured if m.system.name == name and not m.problem]
        rate = rate_at(p99s, P99_MS)
        highest = f"up to {rate:,.0f}/s with a p99 of at most {P99_MS:g} ms" if rate else f"p99 above {P99_MS:g} ms"
        notes.append(f"{name} {capacity:,.0f} requests/s, {highest}")
    failed = [m for m in counted if m.problem]
    return part_of([*failed, *measured], columns, note=f"Capacity: {'; '.join(notes)}.")


def _num_arrivals(context: Context) -> int:
    return NUM_ARRIVALS // 50 if context.quick else NUM_ARRIVALS


def _rates(capacities: Iterable[float]) -> list[float]:
    """Returns the FRACTIONS of all capacities, each slower server's first; none is close to another."""
    rates: list[float] = []
    for capacity in sorted(capacities):
        new = [round(part * capacity, 1) for part in FRACTIONS]
        rates += [rate for rate in new if all(max(rate / other, other / rate) > LEAST_STEP for other in rates)]
    return sorted(rates)


def rate_at(points: Sequence[tuple[float, float]], latency: float) -> float | None:
    """Returns the highest load with at most this latency, between two measured loads on a straight line.

    Latencies that fall where the load rises are averaged first, so that one disturbed visit does not decide it: the
    nearest nondecreasing sequence by least squares (its max-min formula, Barlow et al. 1972). Returns None if even the
    lowest load has a higher latency; the highest load, a lower bound, if none has.
    """
    loads, latencies = [load for load, _ in points], [latency for _, latency in points]
    rising = [
        max(min(fmean(latencies[first : last + 1]) for last in range(index, len(points))) for first in range(index + 1))
        for index in range(len(points))
    ]
    num_below = sum(value <= latency for value in rising)
    if num_below in (0, len(points)):
        return loads[-1] if num_below else None
    pair = slice(num_below - 1, num_below + 1)
    return float(np.interp(latency, rising[pair], loads[pair]))
