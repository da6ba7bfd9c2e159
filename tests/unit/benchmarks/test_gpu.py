"""The GPU's benchmark, as far as a CPU can run it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from attendant.runtime.errors import UserError
from attendant.runtime.onnx.stepper import OnnxStepper
from benchmarks.gpu.__main__ import main, refuse_missing
from benchmarks.gpu.measurement import Effort, measure
from benchmarks.gpu.parity import Parity, largest_error
from benchmarks.gpu.report import write_report
from benchmarks.gpu.systems import System
from tests.fakes import FakeStepper

ROOT = Path(__file__).parents[3]


def has_cuda() -> bool:
    try:
        refuse_missing("cuda")
    except UserError:
        return False
    return True


@pytest.mark.skipif(has_cuda(), reason="there is a GPU here")
def test_without_a_gpu_one_line_says_so() -> None:
    environment = os.environ | {"PYTHON": sys.executable}
    run = subprocess.run(["benchmarks/gpu.sh"], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 2
    assert run.stderr.startswith("gpu: provider cuda is not available here: ") and run.stderr.count("\n") == 1
    assert not run.stdout


def test_a_smoke_run_checks_measures_and_writes(tmp_path: Path) -> None:
    main(["--provider", "cpu", "--smoke", "--output", str(tmp_path)])
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert [one["holds"] for one in found["parity"]] == [True] * 5
    assert {one["precision"] for one in found["steps"]} == {"fp32", "fp16"}
    assert {(one["search"], one["num_rows"]) for one in found["steps"]} == {("greedy", 1), ("greedy", 8), ("beam 4", 8)}
    assert found["left_out"] == ""
    page = (tmp_path / "gpu.md").read_text()
    assert "nothing of a GPU's speed" in page
    assert page.count("(gpu-") == 2 and (tmp_path / "gpu-beam-4.svg").exists()


def test_what_the_budget_does_not_reach_is_said(tmp_path: Path) -> None:
    main(["--provider", "cpu", "--smoke", "--output", str(tmp_path), "--budget-seconds", "0"])
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["steps"] == [] and "what the time budget did not reach" in found["left_out"]


def test_parity_sees_a_kernel_that_ignores_lengths(tiny_stepper: OnnxStepper) -> None:
    class Unequal(OnnxStepper):
        def encode(self, sources):  # type: ignore[no-untyped-def]
            longest = max(map(len, sources))
            return super().encode([[*source, *[0] * (longest - len(source))] for source in sources])

    assert largest_error(tiny_stepper, tiny_stepper, 14) == 0
    faulty = object.__new__(Unequal)
    faulty.__dict__.update(tiny_stepper.__dict__)
    error = largest_error(faulty, tiny_stepper, 14)
    assert not Parity("faulty", "fp32", error).holds
    assert not Parity("faulty", "fp32", float("nan")).holds


def test_a_beam_counts_its_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(np.arange(0, 1000, 0.5))
    monkeypatch.setattr("benchmarks.gpu.measurement.time.perf_counter", lambda: next(clock))
    system = System(name="fake", precision="fp32", make=FakeStepper)
    effort = Effort(num_rows=(8,), warm_steps=0, visit_seconds=1.0)
    found = measure(system, FakeStepper(), "beam 4", 8, 3, effort)
    assert (found.step_ms, found.tokens_per_second) == (500.0, 4.0), "two sources, a symbol each"


def test_an_empty_report_is_a_page(tmp_path: Path) -> None:
    write_report(tmp_path, "command", "nothing", [], [], "everything")
    assert "Left out: everything." in (tmp_path / "gpu.md").read_text()
