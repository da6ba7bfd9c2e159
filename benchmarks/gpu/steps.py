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
from attendant.training.model.stepping.stepper import TorchStepper

PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A stepper to be: `make` takes seconds; what `is_compiled` compiles every shape by itself."""

    name: str
    precision: Precision
    make: Callable[[], Stepper]
    is_compiled: bool = False


def candidates(bundle: Bundle, model: Seq2Seq, provider: Provider) -> Iterator[Candidate]:
    """Ours, then PyTorch's with the same model where it has the device; what is compiled comes last."""
    for precision in PRECISIONS:
        for graphs in (False, True):
            # A step is recorded when its shape comes back: here every one does.
            captures = Captures(limit=256, after=1)
            make = partial(DeviceStepper, bundle, precision, provider, cuda_graphs=graphs, captures=captures)
            yield Candidate(f"attendant{', CUDA graphs' if graphs else ''}, {precision}", precision, make)
    # On the CPU nothing is measured that counts: compiling would only take long, and its LSTM has no fp16.
    on_gpu = provider == "cuda"
    if on_gpu and not torch.cuda.is_available():
        return
    for compiled in (False, True) if on_gpu else (False,):
        for precision in PRECISIONS if on_gpu else PRECISIONS[:1]:
            name = f"PyTorch {torch.__version__}, {'torch.compile' if compiled else 'eager'}, {precision}"
            yield Candidate(name, precision, partial(_torch_stepper, model, precision, provider, compiled), compiled)


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


class Effort(NamedTuple):
    """Rows stepped together; steps before the clock runs, in which CUDA graphs are recorded; seconds that are timed."""

    num_rows: tuple[int, ...]
    warm_steps: int
    seconds: float


FULL = Effort(num_rows=tuple(2**power for power in range(11)), warm_steps=24, seconds=0.3)
QUICK = Effort(num_rows=(1, 8), warm_steps=4, seconds=0.02)


def time_steps(stepper: Stepper, per_source: int, num_rows: int, num_tokens: int, effort: Effort) -> dict[str, float]:
    """Steps of `num_rows` rows over sources of `num_tokens` positions: the median in ms, and target symbols of all
    sources per second, one a step each.
    """
    step = stepping(stepper, num_rows // per_source, per_source, num_tokens)
    for _ in range(effort.warm_steps):
        step()
    seconds: list[float] = []
    while sum(seconds) < effort.seconds or len(seconds) < 3:
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
    return {"ms": 1000 * median(seconds), "tokens": num_rows / per_source / median(seconds)}


def stepping(stepper: Stepper, num_sources: int, per_source: int, num_tokens: int) -> Callable[[], None]:
    """One step at each call, of the same sources for ever; rows of a beam change places as in every other system."""
    random = np.random.default_rng(0)
    sources = random.integers(4, stepper.vocabulary_size, (num_sources, num_tokens)).tolist()
    state = stepper.encode(sources)
    starts = np.repeat(np.arange(num_sources) * per_source, per_source)
    if per_source > 1:
        state = stepper.select(state, np.repeat(np.arange(num_sources), per_source))
    previous = np.full(len(starts), 4, np.int64)

    def step() -> None:
        nonlocal state, previous
        output, state = stepper.step(state, previous, num_candidates=2 * per_source if per_source > 1 else 1)
        previous = np.ascontiguousarray(output.candidate_ids[:, 0])
        if per_source > 1:
            rows = starts + random.integers(0, per_source, len(starts))
            state, previous = stepper.select(state, rows), previous[rows]

    return step
