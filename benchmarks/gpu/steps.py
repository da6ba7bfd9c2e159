"""Steps of so many rows, timed from the ids that go up to the candidates that have come down; and who does them.

Our stepper with and without CUDA graphs, PyTorch eager and compiled, in fp32 and fp16.
"""

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch

from attendant.runtime.bundle.bundle import Bundle
from attendant.runtime.bundle.manifest import Precision, Provider
from attendant.runtime.device.buckets import Captures
from attendant.runtime.device.stepper import DeviceStepper
from attendant.runtime.stepper import DecoderState, Ids, StepOutput, Stepper, Taken
from attendant.training.model import Seq2Seq
from attendant.training.model.stepper import TorchStepper
from benchmarks.harness.measurement import System, Visit, Visits

CAPTURE_AFTER = 1
"""Steps before one is recorded: here every shape comes back."""

COMPILED_ROWS, COMPILE_SECONDS = (1, 64, 1024), 60.0
"""Row counts at which torch.compile is measured, which takes it a minute or so each."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A stepper to be: `make` takes seconds; what `is_compiled` compiles every shape by itself."""

    name: str
    precision: Precision
    make: Callable[[], Stepper]
    is_compiled: bool = False


class Effort(NamedTuple):
    """Rows stepped together; steps before the clock runs, in which CUDA graphs are recorded; seconds that are timed."""

    num_rows: tuple[int, ...]
    warm_steps: int
    seconds: float


FULL = Effort(num_rows=tuple(2**power for power in range(11)), warm_steps=24, seconds=0.3)
QUICK = Effort(num_rows=(1, 8), warm_steps=4, seconds=0.02)


def candidates(bundle: Bundle, model: Seq2Seq | None, provider: Provider) -> Iterator[Candidate]:
    """Ours, then PyTorch's with the same model; None: this PyTorch has no such device."""
    precisions: tuple[Precision, ...] = ("fp32", "fp16")
    for precision in precisions:
        for graphs in (False, True):
            name = f"attendant{', CUDA graphs' if graphs else ''}, {precision}"
            yield Candidate(name, precision, partial(_our_stepper, bundle, precision, provider, graphs))
    # On the CPU nothing is measured that counts: compiling would only take long, and its LSTM has no fp16.
    on_cpu = provider == "cpu"
    if model is None:
        return
    for precision in precisions[:1] if on_cpu else precisions:
        for compiled in (False,) if on_cpu else (False, True):
            name = f"PyTorch {torch.__version__}, {'torch.compile' if compiled else 'eager'}, {precision}"
            make = partial(_torch_stepper, model, precision, provider, compiled)
            yield Candidate(name, precision, make, is_compiled=compiled)


def _our_stepper(bundle: Bundle, precision: Precision, provider: Provider, cuda_graphs: bool) -> Stepper:
    captures = Captures(limit=256, after=CAPTURE_AFTER)
    return DeviceStepper(bundle, precision, provider, cuda_graphs=cuda_graphs, captures=captures)


def _torch_stepper(model: Seq2Seq, precision: Precision, provider: Provider, compiled: bool) -> Stepper:
    copied: Any = copy.deepcopy(model)
    if compiled:
        copied.step = torch.compile(copied.step, mode="reduce-overhead")
    return TorchStepper(copied, provider) if precision == "fp32" else _HalfStepper(copied, provider)


class _HalfStepper(TorchStepper):
    """A stepper of PyTorch's whose products are of fp16, chosen by PyTorch itself."""

    def encode(self, sources: Sequence[Sequence[int]]) -> DecoderState:
        with torch.autocast(self._device.type, dtype=torch.float16):
            return super().encode(sources)

    def step(self, given: DecoderState | Taken, previous_ids: Ids, **options: Any) -> tuple[StepOutput, DecoderState]:
        with torch.autocast(self._device.type, dtype=torch.float16):
            return super().step(given, previous_ids, **options)


def row_counts(candidate: Candidate, per_source: int, effort: Effort) -> list[int]:
    """How many rows its steps are timed with."""
    counts = [count for count in effort.num_rows if count % per_source == 0]
    return [count for count in counts if not candidate.is_compiled or count in COMPILED_ROWS]


def step_system(candidate: Candidate, per_source: int, num_tokens: int, effort: Effort, deadline: float) -> System:
    """A visit for each number of rows in which sources have as many as they need, as long as there is time for it."""
    latest = deadline - COMPILE_SECONDS if candidate.is_compiled else deadline

    def start() -> Iterator[Visits]:
        stepper = candidate.make()
        yield {f"_{count}": visit(stepper, count) for count in row_counts(candidate, per_source, effort)}

    def visit(stepper: Stepper, count: int) -> Visit:
        def ask(number: int) -> dict[str, float]:
            in_time = time.monotonic() < latest
            return time_steps(stepper, per_source, count, num_tokens, effort) if in_time else {}

        return ask

    return System(key=candidate.name, name=candidate.name, start=start)


def time_steps(stepper: Stepper, per_source: int, num_rows: int, num_tokens: int, effort: Effort) -> dict[str, float]:
    """Steps of `num_rows` rows over sources of `num_tokens` positions: the median in ms, and target symbols of all
    sources per second, one a step each.
    """
    run = _steps(stepper, num_rows // per_source, per_source, num_tokens)
    for _ in range(effort.warm_steps):
        run()
    seconds: list[float] = []
    while sum(seconds) < effort.seconds or len(seconds) < 3:
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return {"ms": 1000 * median(seconds), "tokens": num_rows / per_source / median(seconds)}


def _steps(stepper: Stepper, num_sources: int, per_source: int, num_tokens: int) -> Callable[[], None]:
    """One step at each call, of the same sources for ever; rows of a beam change places as in every other system."""
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
