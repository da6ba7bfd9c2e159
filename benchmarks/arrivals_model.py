"""A model of random arrivals: the engine with its real scheduler in virtual time, in which only the graphs take time.

A call of the graphs takes as long as it does alone, and more if a batch changes (caches, copies, bindings). A real
server takes more: the cost of serving.

Shapes: B sources, R rows.
"""

import itertools
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.bundle.manifest import SpecialIds
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.onnx.stepper import OnnxStepper, alike
from attendant.runtime.stepper import DecoderState, Ids, StepOutput, Taken, common_width, state_of
from attendant.server.engine.engine import Engine
from attendant.server.engine.messages import EngineRequest
from attendant.server.engine.scheduler import Budget, Scheduler
from benchmarks.job import EOS_ID, NUM_SPECIAL_SYMBOLS
from benchmarks.workload import Context, Work

BUDGET = Budget(max_rows=256, max_source_positions=1 << 16)
SPECIAL_IDS = SpecialIds(pad=0, unk=1, bos=2, eos=EOS_ID, start=2)
NUM_WARM = 8
NUM_TIMED = 20
NUM_CHANGED = 5
"""Rows of a batch which a row joins or leaves."""

NUM_AFTER_CHANGE = 12
"""Steps after which such a batch is as fast as before."""


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
    state = stepper.encode([source])

    def step(num_steps: int = 1) -> None:
        nonlocal state
        for _ in range(num_steps):
            _, state = stepper.step(Taken(state), np.full(state.num_rows, 4, np.int64), num_candidates=1)

    def join() -> None:
        nonlocal state
        state = stepper.concat([Taken(state), Taken(stepper.encode([source]))])
        step(NUM_AFTER_CHANGE)

    def leave() -> None:
        nonlocal state
        state = stepper.select(Taken(state), np.arange(state.num_rows - 1))
        step(NUM_AFTER_CHANGE)

    def step_seconds(num: int) -> float:
        nonlocal state
        state = stepper.encode([source] * num)
        return _seconds(step)[0]

    steps = [step_seconds(num) for num in num_rows]
    encodings = [_seconds(partial(stepper.encode, [[4] * cells]))[0] for cells in num_cells]
    (encoding,) = _seconds(partial(stepper.encode, [source]))
    with_last, without_last = step_seconds(NUM_CHANGED), step_seconds(NUM_CHANGED - 1)
    join_seconds, leave_seconds = _seconds(join, leave)
    return Costs(
        *_line(num_rows, steps),
        *_line(num_cells, encodings),
        join=max(0.0, join_seconds - encoding - NUM_AFTER_CHANGE * with_last),
        leave=max(0.0, leave_seconds - NUM_AFTER_CHANGE * without_last),
    )


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
        self._num_rows = 0  # of the last step; 0 if the encoder ran after it

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


def modelled(
    costs: Costs, work: Work, rate: float, num_arrivals: int, scheduler: Callable[[Budget], Scheduler]
) -> tuple[float, float]:
    """Returns the median and the 99th percentile of the latency in ms, from arrival to answer.

    Args:
        rate: mean arrivals per second, at random moments (Poisson).
        scheduler: makes the engine's scheduler.
    """
    stepper = TimedStepper(costs)
    engine = Engine(stepper, BUDGET, SPECIAL_IDS, lambda: stepper.now, scheduler)
    generator = random.Random(1)
    arrivals = list(itertools.accumulate(generator.expovariate(rate) for _ in range(num_arrivals)))
    seconds: list[float] = []
    num_submitted = 0
    while len(seconds) < num_arrivals:
        if not engine.has_work:
            stepper.now = max(stepper.now, arrivals[num_submitted])
        while num_submitted < num_arrivals and arrivals[num_submitted] <= stepper.now:
            source, num_steps = work[num_submitted % len(work)]
            options = DecodingOptions(max_length=max(1, num_steps - 1))
            engine.submit(EngineRequest(num_submitted, tuple(source), options, arrivals[num_submitted]))
            num_submitted += 1
        seconds += [stepper.now - arrivals[key] for key, _ in engine.step().outcomes]
    p50, p99 = (1e3 * np.percentile(seconds, (50, 99))).tolist()
    return p50, p99
