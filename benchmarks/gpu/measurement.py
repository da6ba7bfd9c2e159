"""Steps of so many rows, timed from the ids that go up to the candidates that have come down.

Greedy: every row is a source's only one. Beam: four rows a source, reordered after every step as a search would, by the
same permutations in every system. Reordering is part of the step.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np

from attendant.runtime.stepper import Stepper
from benchmarks.gpu.systems import System

BEAM_SIZE: Final = 4
SEARCHES: Final = {"greedy": 1, f"beam {BEAM_SIZE}": BEAM_SIZE}
"""Name -> rows per source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is measured.

    Attributes:
        num_rows: rows stepped together.
        warm_steps: before the clock runs; CUDA graphs are recorded in them.
        visit_seconds: of steps that are timed, and at least three.
    """

    num_rows: tuple[int, ...]
    warm_steps: int
    visit_seconds: float


FULL: Final = Effort(num_rows=tuple(2**power for power in range(11)), warm_steps=24, visit_seconds=0.3)
SMOKE: Final = Effort(num_rows=(1, 8), warm_steps=4, visit_seconds=0.02)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What a step took.

    Attributes:
        step_ms: the median.
        tokens_per_second: target symbols of all sources, one a step each.
    """

    system: str
    precision: str
    search: str
    num_rows: int
    step_ms: float
    tokens_per_second: float


def measure(
    system: System, stepper: Stepper, search: str, num_rows: int, num_tokens: int, effort: Effort
) -> Measurement:
    """Times steps of `num_rows` rows over sources of `num_tokens` positions."""
    per_source = SEARCHES[search]
    run = _steps(stepper, num_rows // per_source, per_source, num_tokens)
    for _ in range(effort.warm_steps):
        run()
    seconds: list[float] = []
    while sum(seconds) < effort.visit_seconds or len(seconds) < 3:
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    step_seconds = median(seconds)
    return Measurement(
        system=system.name,
        precision=system.precision,
        search=search,
        num_rows=num_rows,
        step_ms=1000 * step_seconds,
        tokens_per_second=num_rows / per_source / step_seconds,
    )


def _steps(stepper: Stepper, num_sources: int, per_source: int, num_tokens: int) -> Callable[[], None]:
    """One step at each call, of the same sources for ever."""
    random = np.random.default_rng(0)
    sources = random.integers(4, stepper.vocabulary_size, (num_sources, num_tokens)).tolist()
    state = stepper.encode(sources)
    starts = np.repeat(np.arange(num_sources) * per_source, per_source)
    if per_source > 1:
        state = stepper.select(state, np.repeat(np.arange(num_sources), per_source))
    previous = np.full(len(starts), 4, np.int64)

    def run() -> None:
        nonlocal state, previous
        output, state = stepper.step(state, previous, num_candidates=2 * per_source if per_source > 1 else 1)
        previous = np.ascontiguousarray(output.candidate_ids[:, 0])
        if per_source > 1:
            rows = starts + random.integers(0, per_source, len(starts))
            state, previous = stepper.select(state, rows), previous[rows]

    return run
