"""Measures one decoder step on a GPU (benchmarks/gpu.sh) in under 8 minutes. Tests marked `cuda` compare its results.

Our stepper, PyTorch eager and compiled, in fp32 and fp16. A step is timed from the upload of the ids to the download of
the candidates.
"""

import copy
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any, cast

import numpy as np
import torch

from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.bundle.manifest import Precision, Provider, TensorSpec
from attendant.runtime.onnx.device import DeviceStepper, select_graph
from attendant.runtime.onnx.session import BoundSession
from attendant.runtime.stepper import Stepper
from attendant.training.model import Seq2Seq
from attendant.training.model.stepper import TorchStepper
from benchmarks.harness import System, Visits, measure, part_of
from benchmarks.results import Part
from benchmarks.workload import Context, mt_bundle, mt_model

PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16")
BEAM_SIZE = 4
NUM_ROWS, QUICK_ROWS = tuple(2**power for power in range(11)), (1, 8)
WARM_STEPS = 24
COMPILED_ROWS, COMPILE_SECONDS = (1, 64, 1024), 60.0
"""Row counts at which torch.compile is measured; it takes a minute or so for each."""


Candidate = tuple[str, Callable[[], Stepper]]
"""The name of a system, and a function that makes its stepper within seconds."""


def greedy(context: Context) -> Part:
    """Greedy.

    Medians of single steps, including the copies of ids to the GPU and of candidates back, by the number of rows in a
    step.
    """
    # The other half of the time is the beam's.
    return _steps(context, per_source=1, share=0.5)


def beam(context: Context) -> Part:
    """Beam 4.

    As before, with four rows per source, reordered after every step as in a search; the reordering is part of the step.
    """
    return _steps(context, per_source=BEAM_SIZE, share=1.0)


def _steps(context: Context, *, per_source: int, share: float) -> Part:
    """Measures all candidates, the compiled ones last, in a share of the time that is left."""
    seconds_left = context.began + context.options.budget_seconds - time.monotonic()
    deadline, note = time.monotonic() + share * seconds_left, _device(context)
    all_counts = QUICK_ROWS if context.quick else NUM_ROWS

    def start(make: Callable[[], Stepper], compiled: bool) -> Iterator[Visits]:
        stepper = make()
        counts = [count for count in all_counts if not compiled or count in COMPILED_ROWS]
        latest = deadline - COMPILE_SECONDS if compiled else deadline

        def visit(count: int, number: int) -> dict[str, float]:
            if time.monotonic() < latest:
                step = stepping(stepper, count // per_source, per_source, context.workload.num_tokens)
                return {"ms": time_step(step, context.visit_seconds / 5)}
            nonlocal note
            note = f"{_device(context)} Left out: steps that the time budget did not reach."
            return {}

        yield {f"{count} rows": partial(visit, count) for count in counts if count % per_source == 0}

    measured = []
    for compiled in (False, True):
        candidates = _candidates(context, compiled)
        measured += measure([System(name=name, start=partial(start, make, compiled)) for name, make in candidates], 1)
    return part_of(measured, note=note)


def _candidates(context: Context, compiled: bool) -> Iterator[Candidate]:
    """Yields ours and PyTorch's, with the same model and if PyTorch has the device; or PyTorch's compiled ones.

    Raises:
        UserError: the provider is missing.
    """
    provider, model = context.options.provider, mt_model(context.workload)
    on_gpu = provider == "cuda"
    if not compiled:
        # Before a bundle is made, which takes a minute.
        spec = TensorSpec(name="probe", dtype="float32", shape=("R",))
        BoundSession.of_bytes("probe", select_graph([spec]), provider=provider, num_threads=1)
        bundle = open_bundle(mt_bundle(context.workload, context.cache, PRECISIONS))
        for precision in PRECISIONS:
            yield f"attendant, {precision}", partial(DeviceStepper, bundle, precision, provider)
    # Speed on the CPU is not of interest: compiling would only take long, and its LSTM has no fp16.
    if torch.cuda.is_available() if on_gpu else not compiled:
        for precision in PRECISIONS if on_gpu else PRECISIONS[:1]:
            name = f"PyTorch {torch.__version__}, {'torch.compile' if compiled else 'eager'}, {precision}"
            yield name, partial(_torch_stepper, model, precision, provider, compiled)


def _torch_stepper(model: Seq2Seq, precision: Precision, provider: Provider, compiled: bool) -> Stepper:
    copied: Any = copy.deepcopy(model)
    if compiled:
        copied.step = torch.compile(copied.step, mode="reduce-overhead")
    stepper: Any = TorchStepper(copied, provider)
    if precision == "fp16":
        # PyTorch chooses the products that run in fp16.
        half = torch.autocast(provider, dtype=torch.float16)
        stepper.encode, stepper.step = half(stepper.encode), half(stepper.step)
    return cast(Stepper, stepper)


def _device(context: Context) -> str:
    if context.options.provider == "cpu":
        return "Device: the CPU, which shows that everything runs and nothing of a GPU's speed."
    if torch.cuda.is_available():
        return f"Device: {torch.cuda.get_device_name()}."
    return "Left out: PyTorch, since this build of it has no CUDA."


def time_step(step: Callable[[], None], num_seconds: float) -> float:
    """Returns the median time of a step in ms."""
    for _ in range(WARM_STEPS):
        step()
    seconds: list[float] = []
    while sum(seconds) < num_seconds or len(seconds) < 3:
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
    return 1000 * median(seconds)


def stepping(stepper: Stepper, num_sources: int, per_source: int, num_tokens: int) -> Callable[[], None]:
    """Returns a function that makes one step of the same sources; rows of a beam are reordered as in every system."""
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
