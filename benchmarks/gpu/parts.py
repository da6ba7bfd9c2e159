"""Parity on a GPU, then the time of a step, in one run under 8 minutes: benchmarks/gpu.sh."""

import argparse
import subprocess
import time

import torch

from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.device.graphs import StateLayout, reordering_graph
from attendant.runtime.onnx.session import BoundSession
from attendant.runtime.onnx.stepper import OnnxStepper
from benchmarks.command import Context
from benchmarks.gpu.parity import TOLERANCES, largest_error
from benchmarks.gpu.steps import FULL, QUICK, Candidate, candidates, row_counts, step_system
from benchmarks.harness.measurement import Measurement, figures, measure
from benchmarks.harness.results import Cell, Part, Picture
from benchmarks.mt import mt_bundle, mt_model

BEAM_SIZE = 4
UNITS = {"ms": "ms a step", "tokens": "tokens/s"}


def parity(context: Context) -> Part:
    """Parity.

    The largest error of any log-probability or attention weight against onnxruntime's CPU in fp32, on sources of
    unequal lengths that join, leave and are reordered.
    """
    reference = OnnxStepper(open_bundle(mt_bundle(context.workload, context.cache, ("fp32", "fp16"))))
    rows: list[list[Cell]] = []
    problems = []
    for one in _candidates(context):
        # Every shape of what is compiled would be compiled by itself.
        if not one.is_compiled:
            context.say(f"checking {one.name}")
            error, allowed = (
                largest_error(one.make(), reference, context.workload.vocabulary_size),
                TOLERANCES[one.precision],
            )
            holds = error <= allowed
            rows.append([one.name, f"{error:.1e}", f"{allowed:g}", str(holds).lower()])
            if not holds:
                problems.append(f"{one.name} does not compute what the CPU computes: off by {error:.1e}")
    columns = ["system", "largest error", "allowed", "holds"]
    return Part(columns=columns, rows=rows, note=_device(context), problems=problems)


def greedy(context: Context) -> Part:
    """Greedy.

    Medians of single steps, ids up and candidates down included. Columns: rows stepped together.
    """
    # The other half of the time is the beam's.
    return _steps(context, "greedy", per_source=1, seconds=0.5 * _seconds_left(context))


def beam(context: Context) -> Part:
    """Beam 4.

    As before; four rows a source, reordered after every step as a search would, which is part of the step.
    """
    return _steps(context, f"beam-{BEAM_SIZE}", per_source=BEAM_SIZE, seconds=_seconds_left(context))


def _seconds_left(context: Context) -> float:
    return float(context.began + context.options.budget_seconds - time.monotonic())


def _steps(context: Context, search: str, *, per_source: int, seconds: float) -> Part:
    """What is compiled comes last, as far as the time goes."""
    effort, deadline = QUICK if context.quick else FULL, time.monotonic() + seconds
    found: list[Measurement] = []
    late = False
    for is_compiled in (False, True):
        chosen = [candidate for candidate in _candidates(context) if candidate.is_compiled == is_compiled]
        systems = [step_system(one, per_source, context.workload.num_tokens, effort, deadline) for one in chosen]
        measured = measure(systems, num_rounds=1, say=context.say)
        for candidate, one in zip(chosen, measured, strict=True):
            wanted = {f"ms_{count}" for count in row_counts(candidate, per_source, effort)}
            late = late or (one.problem is None and not wanted <= one.samples.keys())
        found += measured
    found = [one for one in found if one.samples]
    counts = [count for count in effort.num_rows if any(f"ms_{count}" in one.samples for one in found)]
    rows: list[list[Cell]] = []
    for one in found:
        for figure, unit in UNITS.items():
            names = [f"{figure}_{count}" for count in counts]
            cells = [one.median(name) if name in one.samples else None for name in names]
            rows.append([f"{one.system.name}: {unit}", *cells])
    picture = Picture(
        file=f"gpu-{search}.svg",
        title=f"{search}: tokens/s by rows stepped together",
        x_label="rows",
        y_label="tokens/s",
        series={
            one.system.name: [(n, one.median(f"tokens_{n}")) for n in counts if f"tokens_{n}" in one.samples]
            for one in found
        },
        logarithmic=True,
    )
    return Part(
        columns=["", *map(str, counts)],
        rows=rows,
        figures=figures(found),
        pictures=[picture] if found else [],
        note=_device(context) + (" Left out: what the time budget did not reach." if late else ""),
    )


def _candidates(context: Context) -> list[Candidate]:
    provider = context.options.provider
    bundle = open_bundle(mt_bundle(context.workload, context.cache, ("fp32", "fp16")))
    model = mt_model(context.workload) if provider == "cpu" or torch.cuda.is_available() else None
    return list(candidates(bundle, model, provider))


def refuse_missing(options: argparse.Namespace) -> None:
    """Raises UserError where the provider is not there, before anything is made that takes a minute."""
    layout = StateLayout(name="probe", dtype="float32", rank=1, position_axis=None)
    BoundSession.of_bytes("probe", reordering_graph([layout], 1), provider=options.provider, num_threads=1)


def _device(context: Context) -> str:
    """The GPU as its driver calls it; the CPU stands in the machine's own line."""
    if context.options.provider == "cpu":
        return "Device: the CPU, which shows that everything runs and nothing of a GPU's speed."
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        name = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip().splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        name = torch.cuda.get_device_name() if torch.cuda.is_available() else "a GPU whose name nothing tells"
    left_out = "" if torch.cuda.is_available() else " Left out: PyTorch, since this build of it has no CUDA."
    return f"Device: {name}.{left_out}"
