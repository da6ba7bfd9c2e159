"""Parity on a GPU, then the time of a step, in one run under 8 minutes: benchmarks/gpu.sh."""

import argparse
import subprocess
import time
from collections.abc import Iterator

import numpy as np
import torch

from attendant.export.verification.comparison import Agreement
from attendant.export.verification.plan import VerificationPlan
from attendant.export.verification.probes import trace_probes, write_probes
from attendant.runtime.bundle.bundle import Bundle, open_bundle
from attendant.runtime.bundle.manifest import Precision
from attendant.runtime.device.graphs import StateLayout, reordering_graph
from attendant.runtime.onnx.session import BoundSession
from attendant.runtime.onnx.stepper import OnnxStepper
from attendant.runtime.stepper import Stepper
from benchmarks.command import Context
from benchmarks.gpu.steps import FULL, PRECISIONS, QUICK, Candidate, candidates, time_steps
from benchmarks.harness.measurement import System, Visit, Visits, curves, measure, part_of
from benchmarks.harness.results import Cell, Part, Picture
from benchmarks.mt import mt_bundle, mt_model

BEAM_SIZE = 4
COMPILED_ROWS, COMPILE_SECONDS = (1, 64, 1024), 60.0
"""Row counts at which torch.compile is measured, which takes it a minute or so each."""

PROBES = VerificationPlan(
    batch_sizes=(11,), source_lengths=(40, 1, 13, 8, 2, 24, 7, 31, 16, 3, 20), beam_sizes=(1, 2, 4), num_steps=12
)
TOLERANCES: dict[Precision, float] = {"fp32": 1e-3, "fp16": 5e-2}
"""|a - b| <= tolerance * max(1, |b|) for every log-probability and attention weight. Each step is given the symbols of
the reference, but its own state: what a kernel gets wrong adds up."""


def parity(context: Context) -> Part:
    """Parity.

    The largest error of any log-probability or attention weight against onnxruntime's CPU in fp32, on sources of
    unequal lengths whose rows are reordered, repeated and dropped.
    """
    bundle = _bundle(context)
    rows: list[list[Cell]] = []
    problems = []
    for one in _candidates(context):
        # Every shape of what is compiled would be compiled by itself.
        if not one.is_compiled:
            context.say(f"checking {one.name}")
            error, allowed = largest_error(one.make(), bundle), TOLERANCES[one.precision]
            holds = error <= allowed
            rows.append([one.name, f"{error:.1e}", f"{allowed:g}", str(holds).lower()])
            if not holds:
                problems.append(f"{one.name} does not compute what the CPU computes: off by {error:.1e}")
    columns = ["system", "largest error", "allowed", "holds"]
    return Part(columns=columns, rows=rows, note=_device(context), problems=problems)


def largest_error(stepper: Stepper, bundle: Bundle) -> float:
    """Of any log-probability or attention weight of the export's own probes, against the CPU's in fp32."""
    probes = write_probes(PROBES, bundle.manifest, (), np.random.default_rng(1))
    found, expected = (
        trace_probes(one, probes, bundle.manifest.graphs["fp32"]) for one in (stepper, OnnxStepper(bundle))
    )
    agreement = Agreement()
    agreement.compare(found, expected, "in one batch")
    errors = agreement.largest_errors()
    return max(errors[name] for name in ("step/log_probs", "step/attention") if name in errors)


def greedy(context: Context) -> Part:
    """Greedy.

    Medians of single steps, ids up and candidates down included, by the rows that are stepped together. The picture has
    the target symbols of all sources per second, one a step each.
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
    """Row counts as columns. What is compiled is measured after all else, as far as the time goes."""
    effort, deadline = QUICK if context.quick else FULL, time.monotonic() + seconds
    counts = [count for count in effort.num_rows if count % per_source == 0]
    left_out: list[str] = []

    def system(candidate: Candidate) -> System:
        latest = deadline - COMPILE_SECONDS if candidate.is_compiled else deadline

        def start() -> Iterator[Visits]:
            stepper = candidate.make()
            chosen = [count for count in counts if not candidate.is_compiled or count in COMPILED_ROWS]
            yield {f"_{count}": visit(stepper, count) for count in chosen}

        def visit(stepper: Stepper, count: int) -> Visit:
            def step(number: int) -> dict[str, float]:
                if time.monotonic() < latest:
                    return time_steps(stepper, per_source, count, context.workload.num_tokens, effort)
                left_out.append(candidate.name)
                return {}

            return step

        return System(key=candidate.name, name=candidate.name, start=start)

    measured = []
    for is_compiled in (False, True):
        chosen = [system(one) for one in _candidates(context) if one.is_compiled == is_compiled]
        measured += measure(chosen, num_rounds=1, say=context.say)
    points = {f"_{count}": float(count) for count in counts}
    picture = Picture(
        file=f"gpu-{search}.svg",
        title=f"{search}: tokens/s by rows stepped together",
        x_label="rows",
        y_label="tokens/s",
        series=curves(measured, "tokens", points),
        logarithmic=True,
    )
    return part_of(
        [one for one in measured if one.samples],
        {f"{count} rows, ms": f"ms_{count}" for count in counts},
        pictures=[picture] if picture.series else [],
        note=_device(context) + (" Left out: what the time budget did not reach." if left_out else ""),
    )


def _bundle(context: Context) -> Bundle:
    return open_bundle(mt_bundle(context.workload, context.cache, PRECISIONS))


def _candidates(context: Context) -> Iterator[Candidate]:
    return candidates(_bundle(context), mt_model(context.workload), context.options.provider)


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
