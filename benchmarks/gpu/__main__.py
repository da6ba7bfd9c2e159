"""python -m benchmarks.gpu: parity on a GPU, then the time of a step, in one run under 8 minutes."""

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.bundle.manifest import Provider
from attendant.runtime.command import exit_command
from attendant.runtime.device.graphs import StateLayout, reordering_graph
from attendant.runtime.errors import VerificationFailed
from attendant.runtime.onnx.session import BoundSession
from attendant.runtime.onnx.stepper import OnnxStepper
from benchmarks.command import Context, Suite, run_suite
from benchmarks.gpu.parity import TOLERANCES, holds, largest_error
from benchmarks.gpu.steps import FULL, SMOKE, Candidate, candidates, step_system
from benchmarks.harness.measurement import Measurement, figures, measure
from benchmarks.harness.results import Cell, Part, Picture
from benchmarks.mt import mt_bundle, mt_model
from benchmarks.workload import QUICK, Workload

BUDGET_SECONDS = 450.0
BEAM_SIZE = 4
UNITS = {"ms": "ms a step", "tokens": "tokens/s"}


class TimeIsUp(Exception):
    """The budget ran out within a call that can't be asked to stop."""


def parity(context: Context) -> Part:
    """Parity.

    The largest error of any log-probability or attention weight against onnxruntime's CPU in fp32, on sources of
    unequal lengths that join, leave and are reordered.
    """
    reference = OnnxStepper(open_bundle(mt_bundle(_workload(context), context.cache, ("fp32", "fp16"))))
    rows: list[list[Cell]] = []
    for one in _candidates(context):
        # Every shape of what is compiled would be compiled by itself.
        if not one.is_compiled:
            context.say(f"checking {one.name}")
            error = largest_error(one.make(), reference, _workload(context).vocabulary_size)
            verdict = str(holds(error, one.precision)).lower()
            rows.append([one.name, f"{error:.1e}", f"{TOLERANCES[one.precision]:g}", verdict])
    return Part(columns=["system", "largest error", "allowed", "holds"], rows=rows, note=_device(context))


def greedy(context: Context) -> Part:
    """Greedy.

    Medians of single steps, ids up and candidates down included. Columns: rows stepped together.
    """
    return _steps(context, "greedy", per_source=1, time_share=0.5)


def beam(context: Context) -> Part:
    """Beam 4.

    As before; four rows a source, reordered after every step as a search would, which is part of the step.
    """
    return _steps(context, f"beam-{BEAM_SIZE}", per_source=BEAM_SIZE, time_share=1.0)


def _steps(context: Context, search: str, *, per_source: int, time_share: float) -> Part:
    """What is compiled comes last, as far as this share of the time that is left goes."""
    effort, num_tokens = SMOKE if _is_smoke(context) else FULL, _workload(context).num_tokens
    measurements: list[Measurement] = []
    note = _device(context)
    try:
        with _time_limit(time_share * (context.options.deadline - time.monotonic())):
            for is_compiled in (False, True):
                chosen = [one for one in _candidates(context) if one.is_compiled == is_compiled]
                systems = [step_system(one, per_source, num_tokens, effort) for one in chosen]
                measure(systems, num_rounds=1, say=context.say, into=measurements)
    except TimeIsUp:
        note += " Left out: what the time budget did not reach."
    measured = [one for one in measurements if one.samples]
    counts = [count for count in effort.num_rows if any(f"ms_{count}" in one.samples for one in measured)]
    rows: list[list[Cell]] = []
    for one in measured:
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
            for one in measured
        },
        logarithmic=True,
    )
    pictures = [picture] if measured else []
    return Part(columns=["", *map(str, counts)], rows=rows, figures=figures(measured), pictures=pictures, note=note)


def _candidates(context: Context) -> list[Candidate]:
    provider: Provider = context.options.provider
    bundle = open_bundle(mt_bundle(_workload(context), context.cache, ("fp32", "fp16")))
    model = mt_model(_workload(context)) if provider == "cpu" or torch.cuda.is_available() else None
    return list(candidates(bundle, model, provider))


def _is_smoke(context: Context) -> bool:
    return context.quick or context.options.smoke


def _workload(context: Context) -> Workload:
    return QUICK if _is_smoke(context) else context.workload


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeIsUp

    if seconds <= 0:
        raise TimeIsUp
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def refuse_missing(provider: Provider) -> None:
    """Raises UserError where the provider is not there, before anything is made that takes a minute."""
    layout = StateLayout(name="probe", dtype="float32", rank=1, position_axis=None)
    BoundSession.of_bytes("probe", reordering_graph([layout], 1), provider=provider, num_threads=1)


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


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--provider", choices=["cuda", "cpu"], default="cuda", help="where the graphs run")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, as --quick, but the results are written")
    help_text = "after so many, what was measured is written and the rest left out"
    parser.add_argument("--budget-seconds", type=float, default=BUDGET_SECONDS, help=help_text)


def choose(options: argparse.Namespace) -> Sequence[str]:
    """All parts; starts the clock. Raises UserError where the provider is not there."""
    refuse_missing(options.provider)
    options.deadline = time.monotonic() + options.budget_seconds
    return list(SUITE.parts)


SUITE = Suite(
    command="benchmarks.gpu",
    name="gpu",
    title="One decoder step on a GPU",
    about="Parity on a GPU, then the time of a step against PyTorch.",
    parts={"parity": parity, "greedy": greedy, "beam": beam},
    add_options=add_options,
    choose=choose,
)


def main(arguments: Sequence[str]) -> None:
    """Runs the command. Raises VerificationFailed where a system does not compute what the CPU computes."""
    found = run_suite(SUITE, arguments)
    rows = found["parity"].rows if "parity" in found else []
    if failed := [f"{name}: off by {error}" for name, error, _, verdict in rows if verdict != "true"]:
        raise VerificationFailed("the provider does not compute what the CPU computes", failed)


if __name__ == "__main__":
    exit_command("gpu", lambda: main(sys.argv[1:]))
