"""Measures a GPU (benchmarks/gpu.sh) in under 8 minutes. Tests marked `cuda` compare its results.

A decoder step of our stepper, of PyTorch eager and compiled, in fp32 and fp16, from the upload of the ids to the
download of the candidates; and the server on the GPU and on the CPU.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from statistics import median
from typing import Any, cast

import numpy as np
import torch

from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.bundle.manifest import Precision, TensorSpec
from attendant.runtime.errors import one_line
from attendant.runtime.onnx.device import DeviceStepper, select_graph
from attendant.runtime.onnx.session import BoundSession
from attendant.runtime.process import available_cpus
from attendant.runtime.stepper import Stepper
from attendant.training.model.stepper import TorchStepper
from benchmarks.harness import Samples, System, Unavailable, Visits, measure, part_of
from benchmarks.results import Part
from benchmarks.servers import attendant_server, closed, requests_of, under
from benchmarks.workload import Context, mt_bundle, mt_model, real_work

PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16")
BEAM_SIZE = 4
NUM_ROWS, QUICK_ROWS = tuple(2**power for power in range(11)), (1, 8)
WARM_STEPS = 24
PART_SECONDS = 90.0  # No measurement of a step starts after this time; one that compiles takes a minute or so more.
SERVED_CLIENTS = (1, 64, 256)
COMPILED_ROWS = (1, 64, 1024)  # Row counts at which torch.compile is measured.


def greedy(context: Context) -> Part:
    """Greedy.

    Medians of single steps, including the copies of ids to the GPU and of candidates back, by the number of rows in a
    step. Steps that the time budget did not reach are left out.
    """
    return _steps(context, per_source=1)


def beam(context: Context) -> Part:
    """Beam 4.

    As before, with four rows per source, reordered after every step as in a search; the reordering is part of the step.
    """
    return _steps(context, per_source=BEAM_SIZE)


def served(context: Context) -> Part:
    """Served, lengths of real sentences, greedy.

    Clients in a closed loop, which share the machine with the server: each sends its next request after each answer.
    CPU ms: processor time of all the server's processes per answer. The CPU's row has one engine on all cores.
    """
    provider, bundle = context.options.provider, mt_bundle(context, precisions=PRECISIONS)
    server = partial(attendant_server, context, requests=requests_of(real_work(context.workload)))
    servers = []
    for precision in PRECISIONS[: 1 if provider == "cpu" else 2]:
        options = f"--precision {precision} --provider {provider} --workers 1 --threads 1"
        servers.append(server(options, name=f"{provider}, {precision}", bundle=bundle))
    servers.append(server(f"--precision int8 --workers 1 --threads {available_cpus()}", name="cpu, int8"))
    loads = {f"{num} clients": closed(context, num) for num in SERVED_CLIENTS}
    return part_of([row for each in servers for row in measure([under(each, loads)], num_rounds=1)])


def _steps(context: Context, per_source: int) -> Part:
    """Measures all systems one after the other, the compiled ones last. Raises UserError: the provider is missing."""
    provider = context.options.provider
    # Fails if the provider is missing, before a bundle is made, which takes a minute.
    spec = TensorSpec(name="probe", dtype="float32", shape=("R",))
    BoundSession.of_bytes("probe", select_graph([spec]), provider=provider, num_threads=1)
    bundle = open_bundle(mt_bundle(context, precisions=PRECISIONS))
    deadline = time.monotonic() + PART_SECONDS

    def system(name: str, make: Callable[[], Stepper], counts: Sequence[int] = NUM_ROWS) -> System:
        def start() -> Iterator[Visits]:
            made = cache(make)

            def visit(count: int, number: int) -> Samples:
                if time.monotonic() > deadline:
                    return {}
                try:
                    step = stepping(made(), count // per_source, per_source, context.workload.num_tokens)
                    for _ in range(WARM_STEPS):
                        step()
                    seconds: list[float] = []
                    while sum(seconds) < context.visit_seconds / 5 or len(seconds) < 3:
                        began = time.perf_counter()
                        step()
                        seconds.append(time.perf_counter() - began)
                    return {"ms": 1000 * median(seconds)}
                except (AssertionError, RuntimeError) as error:  # PyTorch fails: the other systems keep their rows
                    raise Unavailable(one_line(str(error))) from error

            chosen = QUICK_ROWS if context.quick else counts
            yield {f"{count} rows": partial(visit, count) for count in chosen if count % per_source == 0}

        return System(name=name, start=start)

    systems = [system(f"attendant, {name}", partial(DeviceStepper, bundle, name, provider)) for name in PRECISIONS]
    pytorch, stepper = f"PyTorch {torch.__version__}", partial(_torch_stepper, context)
    if provider == "cpu":
        # Speed on the CPU is not of interest: compiling would only take long, and its LSTM has no fp16.
        systems.append(system(f"{pytorch}, eager, fp32", partial(stepper, "fp32")))
        device = "the CPU, which shows that everything runs and nothing of a GPU's speed"
    else:
        for form, counts in (("eager", NUM_ROWS), ("torch.compile", COMPILED_ROWS)):
            for name in PRECISIONS:
                make = partial(stepper, name, compiled=form != "eager")
                systems.append(system(f"{pytorch}, {form}, {name}", make, counts))
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "unknown to this build of PyTorch"
    return part_of([row for each in systems for row in measure([each], num_rounds=1)], note=f"Device: {device}.")


def _torch_stepper(context: Context, precision: Precision, *, compiled: bool = False) -> Stepper:
    model: Any = mt_model(context.workload)
    if compiled:
        model.step = torch.compile(model.step, mode="reduce-overhead")
    stepper: Any = TorchStepper(model, context.options.provider)
    if precision == "fp16":
        # PyTorch chooses the products that run in fp16.
        half = torch.autocast(context.options.provider, dtype=torch.float16)
        stepper.encode, stepper.step = half(stepper.encode), half(stepper.step)
    return cast(Stepper, stepper)


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
