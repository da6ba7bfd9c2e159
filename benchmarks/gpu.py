"""Measures one decoder step on a GPU (benchmarks/gpu.sh): parity with the CPU, then its time, in under 8 minutes.

Our stepper, PyTorch eager and compiled, in fp32 and fp16. A step is timed from the upload of the ids to the download of
the candidates.
"""

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, cast

import numpy as np
import torch

from attendant.export.verification.certification import Agreement
from attendant.export.verification.probes import VerificationPlan, trace_probes, write_probes
from attendant.runtime.bundle.bundle import Bundle, open_bundle
from attendant.runtime.bundle.manifest import Precision, Provider, TensorSpec
from attendant.runtime.onnx.device import DeviceStepper, select_graph
from attendant.runtime.onnx.session import BoundSession
from attendant.runtime.onnx.stepper import OnnxStepper
from attendant.runtime.stepper import Stepper
from attendant.training.model import Seq2Seq
from attendant.training.model.stepper import TorchStepper
from benchmarks.harness import System, Unavailable, Visits, log_line, measure, output_of, part_of
from benchmarks.results import Part
from benchmarks.workload import Context, mt_bundle, mt_model

PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16")
BEAM_SIZE = 4
NUM_ROWS, QUICK_ROWS = tuple(2**power for power in range(11)), (1, 8)
WARM_STEPS = 24
COMPILED_ROWS, COMPILE_SECONDS = (1, 64, 1024), 60.0
"""Row counts at which torch.compile is measured; it takes a minute or so for each."""

PROBES = VerificationPlan(
    batch_sizes=(11,), source_lengths=(40, 1, 13, 8, 2, 24, 7, 31, 16, 3, 20), beam_sizes=(1, 2, 4), num_steps=12
)
TOLERANCES: dict[Precision, float] = {"fp32": 1e-3, "fp16": 5e-2}
"""|a - b| <= tolerance * max(1, |b|) for every log-probability and attention weight. Each step gets the symbols of the
reference, but its own state, so the errors of a kernel add up."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A stepper that `make` creates within seconds. If `is_compiled`, each shape is compiled separately."""

    name: str
    precision: Precision
    make: Callable[[], Stepper]
    is_compiled: bool = False


def parity(context: Context) -> Part:
    """Parity.

    The largest error of any log-probability or attention weight, compared with onnxruntime's CPU in fp32, on sources of
    unequal lengths whose rows are reordered, repeated and dropped.
    """
    bundle = _bundle(context)
    part = Part(columns=["system", "largest error", "allowed", "holds"], note=_device(context))
    for candidate in _candidates(context):
        # Compiling would take a minute for each shape.
        if not candidate.is_compiled:
            log_line(f"checking {candidate.name}")
            error, allowed = largest_error(candidate.make(), bundle), TOLERANCES[candidate.precision]
            holds = error <= allowed
            part.rows.append([candidate.name, f"{error:.1e}", f"{allowed:g}", str(holds).lower()])
            if not holds:
                part.problems.append(f"{candidate.name} does not compute what the CPU computes: off by {error:.1e}")
    return part


def largest_error(stepper: Stepper, bundle: Bundle) -> float:
    """Returns the largest error of the export's own probes, against the CPU's in fp32."""
    probes, graph = write_probes(PROBES, bundle.manifest, (), np.random.default_rng(1)), bundle.manifest.graphs["fp32"]
    ours, expected = (trace_probes(each, probes, graph) for each in (stepper, OnnxStepper(bundle)))
    agreement = Agreement()
    agreement.compare(ours, expected, "in one batch")
    errors = agreement.largest_errors()
    return max(errors[name] for name in ("step/log_probs", "step/attention") if name in errors)


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

    def start(candidate: Candidate) -> Iterator[Visits]:
        stepper = candidate.make()
        counts = [count for count in all_counts if not candidate.is_compiled or count in COMPILED_ROWS]
        latest = deadline - COMPILE_SECONDS if candidate.is_compiled else deadline

        def visit(count: int, number: int) -> dict[str, float]:
            if time.monotonic() < latest:
                step = stepping(stepper, count // per_source, per_source, context.workload.num_tokens)
                return {"ms": time_step(step, context.visit_seconds / 5)}
            nonlocal note
            note = f"{_device(context)} Left out: steps that the time budget did not reach."
            return {}

        yield {f"{count} rows": partial(visit, count) for count in counts if count % per_source == 0}

    measured = []
    for is_compiled in (False, True):
        chosen = [candidate for candidate in _candidates(context) if candidate.is_compiled == is_compiled]
        systems = [System(name=candidate.name, start=partial(start, candidate)) for candidate in chosen]
        measured += measure(systems, num_rounds=1)
    return part_of(measured, note=note)


def _bundle(context: Context) -> Bundle:
    """Raises UserError if the provider is missing, before a bundle is made, which takes a minute."""
    spec = TensorSpec(name="probe", dtype="float32", shape=("R",))
    BoundSession.of_bytes("probe", select_graph([spec]), provider=context.options.provider, num_threads=1)
    return open_bundle(mt_bundle(context.workload, context.cache, PRECISIONS))


def _candidates(context: Context) -> Iterator[Candidate]:
    """Yields ours, then PyTorch's with the same model if it has the device; the compiled ones last."""
    provider, bundle, model = context.options.provider, _bundle(context), mt_model(context.workload)
    for precision in PRECISIONS:
        make = partial(DeviceStepper, bundle, precision, provider)
        yield Candidate(f"attendant, {precision}", precision, make)
    # Speed on the CPU is not of interest: compiling would only take long, and its LSTM has no fp16.
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
    stepper: Any = TorchStepper(copied, provider)
    if precision == "fp16":
        # PyTorch chooses the products that run in fp16.
        half = torch.autocast(provider, dtype=torch.float16)
        stepper.encode, stepper.step = half(stepper.encode), half(stepper.step)
    return cast(Stepper, stepper)


def _device(context: Context) -> str:
    """Returns the GPU's name from its driver."""
    if context.options.provider == "cpu":
        return "Device: the CPU, which shows that everything runs and nothing of a GPU's speed."
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        name = output_of(query).strip()
    except (OSError, Unavailable):
        name = "a GPU of unknown name"
    left_out = "" if torch.cuda.is_available() else " Left out: PyTorch, since this build of it has no CUDA."
    return f"Device: {name}.{left_out}"


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
