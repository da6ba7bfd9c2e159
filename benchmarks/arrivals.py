"""Random arrivals, measured and modelled.

The modelled server is the engine with its real scheduler in virtual time, in which only calls of the model take time:
as much as alone, and more if a batch changes (caches, copies, bindings). A real server takes more, the cost of serving.

Shapes: B sources, R rows.
"""

import itertools
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.bundle.manifest import SpecialIds
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.onnx.stepper import OnnxStepper, alike
from attendant.runtime.stepper import DecoderState, Ids, StepOutput, Taken, common_width, state_of
from attendant.server.bench.load import Load
from attendant.server.engine.engine import Engine
from attendant.server.engine.messages import EngineRequest
from attendant.server.engine.scheduler import Budget, Scheduler
from benchmarks.harness import Columns, Measurement, System, measure, part_of
from benchmarks.job import EOS_ID, NUM_SPECIAL_SYMBOLS
from benchmarks.own_worker import RequestLevelScheduler
from benchmarks.results import Part
from benchmarks.servers import Server, attendant_server, requests_of, under
from benchmarks.workload import Context, Work, real_work

FRACTIONS = (0.3, 0.5, 0.65, 0.8, 0.95)
"""Rates of random arrivals, as fractions of the capacity."""

LEAST_STEP = 1.07
"""Rates that are nearer to another one than by this factor are left out."""

NUM_ROUNDS = 4
NUM_ARRIVALS = 2000
"""Arrivals of a visit, and of the model: 20 of them take longer than the p99."""

YARDSTICK_FRACTION = 0.8
CAPACITY_CLIENTS = 192
P99_MS = 250.0
"""The highest rate with at most this p99 is one of a server's figures."""

BUDGET = Budget(max_rows=256, max_source_positions=1 << 16)
SPECIAL_IDS = SpecialIds(pad=0, unk=1, bos=2, eos=EOS_ID, start=2)
NUM_WARM = 8
NUM_TIMED = 20
NUM_CHANGED = 5
"""Rows of a batch which a row joins or leaves."""

NUM_AFTER_CHANGE = 12
"""Steps after which such a batch is as fast as before."""


def open_loop(context: Context) -> Part:
    """Poisson load, lengths of real sentences.

    One worker, one thread, int8, greedy; 5 to 80 source positions and steps. Latency counts from the planned moment of
    each arrival. Per request: the same server, in which no request joins a running batch. Capacity: requests per
    second of 192 clients in a closed loop. Modelled: the same scheduler in virtual time, in which only calls of the
    model take time, as much as they do in a process that has a core of its own.
    """
    work = real_work(context.workload)
    server = partial(attendant_server, context, requests=requests_of(work), num_workers=1, num_threads=1)
    servers = [
        server(key="step_level", name="batching per step"),
        server(key="request_level", name="batching per request", per_request=True),
    ]
    schedulers = {"step_level": Scheduler, "request_level": RequestLevelScheduler}
    costs = measured_costs(context)
    return open_loops(context, servers, lambda key, rate: modelled(costs, work, rate, schedulers[key]))


def open_loops(
    context: Context, servers: Sequence[Server], model: Callable[[str, float], tuple[float, float]] | None = None
) -> Part:
    """Loads all servers by Poisson arrivals at the same rates, each up to its capacity.

    The figures are `<key>_capacity`; `<key>_rate`, up to which p99 stays below P99_MS; at 80 % of the slowest server's
    capacity `<key>_p99_80`; `<key>_rate_at_p99`, up to which a server's p99 is no higher than the slowest one's; and
    `<key>_p99_ratio`, the greatest ratio of its p99 to the slowest one's at the same rate.

    Args:
        model: returns the expected p50 and p99 in ms of a server, by its key, at a rate. The greatest ratio of measured
            to modelled p99 is `<key>_to_model`.
    """
    num_arrivals = NUM_ARRIVALS // 50 if context.quick else NUM_ARRIVALS
    closed = Load(kind="closed", num_clients=CAPACITY_CLIENTS, seconds=3 * context.visit_seconds)
    counted = measure([under(server, {"": closed}, [closed]) for server in servers], num_rounds=1)
    capacities = {m.system.key: m.median("speed") for m in counted if m.samples}
    rates = _rates(capacities.values())
    points = {f"_{rate}": rate for rate in rates}

    def arrivals(server: Server) -> System:
        # Above the capacity a queue only grows.
        highest = max(FRACTIONS) * capacities[server.key] + 0.1
        loads = {
            point: Load(kind="open", seconds=num_arrivals / rate, rate=rate)
            for point, rate in points.items()
            if rate <= highest
        }
        return under(server, loads, [closed])

    servers = [server for server in servers if server.key in capacities]
    measurements = measure([arrivals(server) for server in servers], NUM_ROUNDS)

    def padding_waste(m: Measurement) -> str:
        return f"{100 * (1 - m.median('efficiency')):.0f} %" if "efficiency" in m.samples else ""

    columns: Columns = {
        "requests/s": lambda m: points[m.point],
        "of its capacity": lambda m: f"{100 * points[m.point] / capacities[m.system.key]:.0f} %",
        "p50 ms": "p50",
        "p99 ms": "p99",
        "rows per step": "step_rows",
        "padding waste": padding_waste,
    }
    expected: dict[tuple[str, float], tuple[float, float]] = {}
    if model is not None:
        for m in measurements:
            key, served = m.system.key, [rate for point, rate in points.items() if m.at(point).samples]
            expected |= {(key, rate): model(key, rate) for rate in served}
        columns = {
            **columns,
            "modelled p50 ms": lambda m: expected[m.system.key, points[m.point]][0],
            "modelled p99 ms": lambda m: expected[m.system.key, points[m.point]][1],
        }
    note = "Capacity: " + ", ".join(f"{s.name} {capacities[s.key]:,.0f} requests/s" for s in servers) + "."
    failed = [m for m in counted if m.problem]
    part = part_of([*failed, *measurements], columns, title="server", points=points, note=note)
    p99s = {
        m.system.key: {rate: m.median("p99" + end) for end, rate in points.items() if "p99" + end in m.samples}
        for m in measurements
    }
    modelled_p99s = {at: p99 for at, (_, p99) in expected.items()}
    return replace(part, figures=_figures(capacities, p99s, modelled_p99s))


def _rates(capacities: Iterable[float]) -> list[float]:
    """Returns the FRACTIONS of all capacities, each slower server's first; none is close to another."""
    rates: list[float] = []
    for capacity in sorted(capacities):
        new = [round(part * capacity, 1) for part in FRACTIONS]
        rates += [rate for rate in new if all(max(rate / other, other / rate) > LEAST_STEP for other in rates)]
    return sorted(rates)


def _figures(
    capacities: Mapping[str, float],
    p99s: Mapping[str, Mapping[float, float]],
    modelled_p99s: Mapping[tuple[str, float], float],
) -> dict[str, float]:
    """Returns the figures that `open_loops` lists.

    Args:
        capacities: by the server's key.
        p99s: in ms, by the server's key and the rate, which ascends.
        modelled_p99s: the same by the model, by key and rate; empty without a model.
    """
    slowest = min(capacities, key=lambda key: capacities[key])
    common = round(YARDSTICK_FRACTION * capacities[slowest], 1)
    at_common = {key: by_rate[common] for key, by_rate in p99s.items() if common in by_rate}
    values: dict[str, float | None] = {f"{key}_capacity": capacity for key, capacity in capacities.items()}
    for key, by_rate in p99s.items():
        line, shared = list(by_rate.items()), by_rate.keys() & p99s[slowest].keys()
        values[f"{key}_rate"] = rate_at(line, P99_MS)
        values[f"{key}_p99_ratio"] = max([by_rate[rate] / p99s[slowest][rate] for rate in shared], default=None)
        ratios = [p99 / modelled_p99s[key, rate] for rate, p99 in line if (key, rate) in modelled_p99s]
        values[f"{key}_to_model"] = max(ratios, default=None)
        if len(at_common) == len(p99s):
            values[f"{key}_p99_80"] = at_common[key]
            values[f"{key}_rate_at_p99"] = rate_at(line, at_common[slowest])
    return {name: value for name, value in values.items() if value is not None}


def rate_at(points: Sequence[tuple[float, float]], latency: float) -> float | None:
    """Returns the highest load with at most this latency, between two measured loads on a straight line.

    Latencies that fall where the load rises are averaged first, so that one disturbed visit does not decide it: the
    nearest nondecreasing sequence by least squares (pool adjacent violators, Ayer et al. 1955).

    Args:
        points: (load, latency), by load.

    Returns:
        None if even the lowest load has a higher latency; the highest load, a lower bound, if none has.
    """
    pools: list[tuple[float, int]] = []  # means of neighbours, and the number of each
    for _, latency_here in points:
        mean, number = latency_here, 1
        while pools and pools[-1][0] > mean:
            last_mean, last_number = pools.pop()
            mean = (mean * number + last_mean * last_number) / (number + last_number)
            number += last_number
        pools.append((mean, number))
    rising = [mean for mean, number in pools for _ in range(number)]
    loads = [load for load, _ in points]
    if not rising or rising[0] > latency:
        return None
    last = max(index for index, value in enumerate(rising) if value <= latency)
    if last + 1 == len(rising):
        return loads[-1]
    share = (latency - rising[last]) / (rising[last + 1] - rising[last])
    return loads[last] + (loads[last + 1] - loads[last]) * share


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of calls of a model.

    Attributes:
        step, row: a step of R rows takes step + row x R, with its weights in the caches and its arrays bound.
        call, cell: an encoding takes call + cell x sources x padded width, with its weights in the caches.
        join: what an encoding that follows steps, and the steps after it, take beyond that.
        leave: the same for steps with fewer rows than those before.
    """

    step: float
    row: float
    call: float
    cell: float
    join: float
    leave: float


def measured_costs(context: Context) -> Costs:
    """Returns the costs of the context's bundle in int8 on one thread."""
    stepper = OnnxStepper(open_bundle(context.bundle), "int8", "cpu", 1)
    source, num_rows, num_cells = [4] * context.workload.num_tokens, (1, 4, 16, 32), (24, 48, 96, 192)
    steps = [_seconds(_Rows(stepper, source, num).step)[0] for num in num_rows]
    encodings = [_seconds(partial(stepper.encode, [[4] * cells]))[0] for cells in num_cells]
    rows = _Rows(stepper, source, NUM_CHANGED)
    (with_last,) = _seconds(rows.step)
    rows.leave()
    (without_last,) = _seconds(rows.step)
    join, leave = _seconds(rows.join, rows.leave)
    (encoding,) = _seconds(partial(stepper.encode, [source]))
    return Costs(
        *_line(num_rows, steps),
        *_line(num_cells, encodings),
        join=max(0.0, join - encoding - NUM_AFTER_CHANGE * with_last),
        leave=max(0.0, leave - NUM_AFTER_CHANGE * without_last),
    )


class _Rows:
    """Rows of a model that are stepped; another one joins, takes some steps, and leaves."""

    def __init__(self, stepper: OnnxStepper, source: list[int], num_rows: int) -> None:
        self._stepper = stepper
        self._source = source
        self._state = stepper.encode([source] * num_rows)

    def step(self) -> None:
        ids = np.full(self._state.num_rows, 4, np.int64)
        _, self._state = self._stepper.step(Taken(self._state), ids, num_candidates=1)

    def join(self) -> None:
        self._state = self._stepper.concat([Taken(self._state), Taken(self._stepper.encode([self._source]))])
        self._steps_after_change()

    def leave(self) -> None:
        self._state = self._stepper.select(Taken(self._state), np.arange(self._state.num_rows - 1))
        self._steps_after_change()

    def _steps_after_change(self) -> None:
        for _ in range(NUM_AFTER_CHANGE):
            self.step()


def _seconds(*calls: Callable[[], object]) -> list[float]:
    """Returns the median processor time of each call, made in turns."""
    seconds = np.empty((NUM_WARM + NUM_TIMED, len(calls)))
    for turn in seconds:
        for number, call in enumerate(calls):
            began = time.thread_time()
            call()
            turn[number] = time.thread_time() - began
    medians: list[float] = np.median(seconds[NUM_WARM:], axis=0).tolist()
    return medians


def _line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Returns the intercept and the slope of the least-squares line; neither is negative."""
    slope, intercept = np.polyfit(x, y, 1).tolist()
    return max(0.0, intercept), max(0.0, slope)


class TimedStepper:
    """A model without weights: no hypothesis ends before its limit, and each call takes its cost in virtual time.

    Attributes:
        now: the virtual time in seconds.
    """

    vocabulary_size = NUM_SPECIAL_SYMBOLS + 1

    def __init__(self, costs: Costs) -> None:
        self.now = 0.0
        self._costs = costs
        # Of the last step; 0 if the encoder ran after it.
        self._num_rows = 0

    def encode(self, sources: Sequence[Sequence[int]], masked: Sequence[Sequence[int]] | None = None) -> DecoderState:
        lengths = np.array([len(source) for source in sources], np.int64)
        for group in alike(lengths.tolist()):
            self.now += self._costs.call + self._costs.cell * len(group) * common_width(lengths[group])
        self.now += self._costs.join if self._num_rows else 0.0
        self._num_rows = 0
        return _state(lengths)

    def step(
        self,
        before: DecoderState | Taken,
        previous_ids: Ids,
        *,
        num_candidates: int,
        forced_ids: Ids | None = None,
        banned_ids: Ids | None = None,
        attention: bool = False,
    ) -> tuple[StepOutput, DecoderState]:
        num_rows = len(previous_ids)
        self.now += self._costs.step + self._costs.row * num_rows
        self.now += self._costs.leave if num_rows < self._num_rows else 0.0
        self._num_rows = num_rows
        ids = np.full((num_rows, num_candidates), NUM_SPECIAL_SYMBOLS, np.int64)
        log_probs = np.zeros(ids.shape, np.float32)
        return StepOutput(ids, log_probs, np.zeros(num_rows, np.float32), None), state_of(before)

    def select(self, before: DecoderState | Taken, rows: Ids) -> DecoderState:
        state = state_of(before)
        return _state(state.source_lengths[state.row_sources[rows]])

    def concat(self, parts: Sequence[DecoderState | Taken]) -> DecoderState:
        return _state(np.concatenate([state_of(part).source_lengths for part in parts]))


def _state(source_lengths: Ids) -> DecoderState:
    """Returns a state that has no tensors. Each source has one row."""
    return DecoderState({}, {}, source_lengths, np.arange(len(source_lengths), dtype=np.int64))


def modelled(costs: Costs, work: Work, rate: float, scheduler: Callable[[Budget], Scheduler]) -> tuple[float, float]:
    """Returns the median and the 99th percentile of the latency in ms, from arrival to answer.

    Args:
        rate: mean arrivals per second, at random moments (Poisson).
        scheduler: makes the engine's scheduler.
    """
    stepper = TimedStepper(costs)
    engine = Engine(stepper, BUDGET, SPECIAL_IDS, lambda: stepper.now, scheduler)
    generator = random.Random(1)
    arrivals = list(itertools.accumulate(generator.expovariate(rate) for _ in range(NUM_ARRIVALS)))
    seconds: list[float] = []
    num_submitted = 0
    while len(seconds) < NUM_ARRIVALS:
        if not engine.has_work:
            stepper.now = max(stepper.now, arrivals[num_submitted])
        while num_submitted < NUM_ARRIVALS and arrivals[num_submitted] <= stepper.now:
            source, num_steps = work[num_submitted % len(work)]
            options = DecodingOptions(max_length=max(1, num_steps - 1))
            engine.submit(EngineRequest(num_submitted, tuple(source), options, arrivals[num_submitted]))
            num_submitted += 1
        seconds += [stepper.now - arrivals[key] for key, _ in engine.step().outcomes]
    p50, p99 = (1e3 * np.percentile(seconds, (50, 99))).tolist()
    return p50, p99
