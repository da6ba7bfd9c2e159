"""python -m benchmarks.gpu: parity on a GPU, then the time of a step, in one run under 8 minutes."""

import argparse
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import torch

from attendant.export.bundle_writer import write_bundle
from attendant.runtime.bundle.bundle import Bundle
from attendant.runtime.bundle.manifest import Provider
from attendant.runtime.command import exit_command
from attendant.runtime.device.graphs import StateLayout, reordering_graph
from attendant.runtime.errors import VerificationFailed
from attendant.runtime.onnx.session import BoundSession
from attendant.runtime.onnx.stepper import OnnxStepper
from benchmarks.gpu.measurement import FULL, SEARCHES, SMOKE, Effort, Measurement, measure
from benchmarks.gpu.parity import Parity, largest_error
from benchmarks.gpu.report import write_report
from benchmarks.gpu.systems import System, our_systems, torch_systems
from benchmarks.mt import SMALL_PLAN, mt_exportable, mt_model
from benchmarks.training.workload import QUICK, Workload

RESULTS = Path(__file__).parents[1] / "results"
BUDGET_SECONDS = 450.0
COMPILED_ROWS = (1, 64, 1024)
"""Row counts at which torch.compile is measured, which takes it a minute or so each."""


class TimeIsUp(Exception):
    """The budget ran out within a call that can't be asked to stop."""


def main(arguments: list[str]) -> None:
    """Runs the command; see `run_command` for what the exceptions mean."""
    options = _parse(arguments)
    provider: Provider = options.provider
    deadline = time.monotonic() + options.budget_seconds
    refuse_missing(provider)
    effort, workload = (SMOKE, QUICK) if options.smoke else (FULL, Workload())
    command = shlex.join(["python", "-m", "benchmarks.gpu", *arguments])
    with tempfile.TemporaryDirectory() as folder:
        _say("exporting the model in fp32 and fp16")
        bundle = write_bundle(
            mt_exportable(workload), Path(folder) / "mt", precisions=("fp32", "fp16"), plan=SMALL_PLAN, say=_say
        )
        run = _Run(options.output, command, provider, bundle, workload, effort, deadline)
        run.check()
        run.time()
    if failed := [one for one in run.parities if not one.holds]:
        lines = [f"{one.system}, {one.precision}: off by {one.error:.2g}" for one in failed]
        raise VerificationFailed(f"{provider} does not compute what the CPU computes", lines)


class _Run:
    """One run: what was found so far is on disk after every stage."""

    def __init__(
        self,
        output: Path,
        command: str,
        provider: Provider,
        bundle: Bundle,
        workload: Workload,
        effort: Effort,
        deadline: float,
    ) -> None:
        self.parities: list[Parity] = []
        self._measured: list[Measurement] = []
        self._output, self._command, self._provider = output, command, provider
        self._bundle, self._workload, self._effort, self._deadline = bundle, workload, effort, deadline
        model = mt_model(workload)
        torch_ran = provider == "cpu" or torch.cuda.is_available()
        self._left = "" if torch_ran else "PyTorch, since this build of it has no CUDA"
        self._systems = [*our_systems(bundle, provider), *(torch_systems(model, provider) if torch_ran else ())]

    def check(self) -> None:
        """Every system that isn't compiled, against the CPU."""
        reference = OnnxStepper(self._bundle)
        for system in self._systems:
            if not system.is_compiled:
                _say(f"checking {system.name}, {system.precision}")
                error = largest_error(system.make(), reference, self._workload.vocabulary_size)
                self.parities.append(Parity(system.name, system.precision, error))
        self._write()

    def time(self) -> None:
        """Few rows first; what is compiled last, as far as the budget goes."""
        quick = [system for system in self._systems if not system.is_compiled]
        compiled = [system for system in self._systems if system.is_compiled]
        rows = self._effort.num_rows
        self._within_budget(lambda: self._visit(quick, rows))
        self._within_budget(lambda: self._visit(compiled, tuple(count for count in rows if count in COMPILED_ROWS)))

    def _visit(self, systems: list[System], rows: tuple[int, ...]) -> None:
        steppers = {(system.name, system.precision): system.make() for system in systems}
        for count in rows:
            for system in systems:
                for search, per_source in SEARCHES.items():
                    if count % per_source == 0:
                        _say(f"{system.name}, {system.precision}, {search}, {count} rows")
                        stepper = steppers[system.name, system.precision]
                        self._measured.append(
                            measure(system, stepper, search, count, self._workload.num_tokens, self._effort)
                        )

    def _within_budget(self, work: Callable[[], None]) -> None:
        left = self._deadline - time.monotonic()
        try:
            if left <= 0:
                raise TimeIsUp
            signal.signal(signal.SIGALRM, _stop)
            signal.setitimer(signal.ITIMER_REAL, left)
            work()
        except TimeIsUp:
            self._left = "; ".join(part for part in (self._left, "what the time budget did not reach") if part)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self._write()

    def _write(self) -> None:
        device = device_name(self._provider)
        write_report(self._output, self._command, device, self.parities, self._measured, self._left)


def refuse_missing(provider: Provider) -> None:
    """Raises UserError where the provider is not there, before anything is made that takes a minute."""
    layout = StateLayout(name="probe", dtype="float32", rank=1, position_axis=None)
    BoundSession.of_bytes("probe", reordering_graph([layout], 1), provider=provider, num_threads=1)


def device_name(provider: Provider) -> str:
    """The GPU as its driver calls it; the CPU stands in the machine's own line."""
    if provider == "cpu":
        return "the CPU, which shows that everything runs and nothing of a GPU's speed"
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip().splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return torch.cuda.get_device_name() if torch.cuda.is_available() else "a GPU whose name nothing tells"


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--provider", choices=["cuda", "cpu"], default="cuda", help="(default: %(default)s)")
    parser.add_argument("--smoke", action="store_true", help="so little that it says nothing but that everything runs")
    parser.add_argument(
        "--budget-seconds",
        type=float,
        default=BUDGET_SECONDS,
        help="after so many, what was measured is written and the rest left out (default: %(default)s)",
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder for gpu.json, gpu.md and the pictures")
    return parser.parse_args(arguments)


def _say(line: str) -> None:
    print(f"gpu: {line}", file=sys.stderr, flush=True)


def _stop(number: int, frame: FrameType | None) -> None:
    raise TimeIsUp


if __name__ == "__main__":
    exit_command("gpu", lambda: main(sys.argv[1:]))
