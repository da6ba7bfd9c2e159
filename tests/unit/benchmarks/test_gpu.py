"""The GPU's benchmark, as far as a CPU can run it."""

import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.errors import UserError
from attendant.runtime.onnx.stepper import OnnxStepper
from benchmarks.__main__ import SUITES, run
from benchmarks.gpu import TOLERANCES, Effort, check_provider, largest_error, time_steps
from tests.fakes import FakeStepper
from tests.paths import ROOT


def has_cuda() -> bool:
    try:
        check_provider(Namespace(provider="cuda"))
    except UserError:
        return False
    return True


@pytest.mark.skipif(has_cuda(), reason="there is a GPU here")
def test_without_a_gpu_one_line_says_so() -> None:
    environment = os.environ | {"PYTHON": sys.executable}
    done = subprocess.run(["benchmarks/gpu.sh"], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("benchmarks: provider cuda is not available here: ") and done.stderr.count("\n") == 1
    assert not done.stdout


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gpu")


def run_on_the_cpu(output: Path, cache: Path, *options: str) -> None:
    common = ["--provider", "cpu", "--quick", "--output", str(output), "--cache", str(cache)]
    run(SUITES, ["gpu", *common, *options])


def test_a_quick_run_checks_measures_and_writes(tmp_path: Path, cache: Path) -> None:
    run_on_the_cpu(tmp_path, cache)
    parts = {name: measured["part"] for name, measured in json.loads((tmp_path / "gpu.json").read_text()).items()}
    assert [row[-1] for row in parts["parity"]["rows"]] == ["true"] * 5
    assert (parts["greedy"]["columns"], parts["beam"]["columns"]) == (
        ["system", "1 rows, ms", "8 rows, ms"],
        ["system", "8 rows, ms"],
    )
    for search in ("greedy", "beam"):
        rows, figures = parts[search]["rows"], parts[search]["figures"]
        assert all(figures[f"{row[0]}_tokens_8"] > 0 for row in rows)
        assert {precision for row in rows for precision in ("fp32", "fp16") if precision in row[0]} == {"fp32", "fp16"}
        assert all(cell > 0 for row in rows for cell in row[1:])
        assert "Left out" not in parts[search]["note"]
    page = (tmp_path / "gpu.md").read_text()
    assert "nothing of a GPU's speed" in page


def test_what_the_budget_does_not_reach_is_said(tmp_path: Path, cache: Path) -> None:
    run_on_the_cpu(tmp_path, cache, "--budget-seconds", "0", "--only", "greedy,beam")
    parts = {name: measured["part"] for name, measured in json.loads((tmp_path / "gpu.json").read_text()).items()}
    assert [part["rows"] for part in parts.values()] == [[], []]
    assert all("Left out: what the time budget did not reach." in part["note"] for part in parts.values())
    assert "Left out" in (tmp_path / "gpu.md").read_text(), "an empty report is a page"


def test_parity_sees_a_kernel_that_ignores_lengths(tiny: Path, tiny_stepper: OnnxStepper) -> None:
    class Unequal(OnnxStepper):
        def encode(self, sources):  # type: ignore[no-untyped-def]
            longest = max(map(len, sources))
            return super().encode([[*source, *[0] * (longest - len(source))] for source in sources])

    bundle = open_bundle(tiny)
    assert largest_error(tiny_stepper, bundle) == 0
    faulty = object.__new__(Unequal)
    faulty.__dict__.update(tiny_stepper.__dict__)
    assert not largest_error(faulty, bundle) <= TOLERANCES["fp32"]


def test_a_beam_counts_its_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(np.arange(0, 1000, 0.5))
    monkeypatch.setattr("benchmarks.gpu.time.perf_counter", lambda: next(clock))
    effort = Effort(num_rows=(8,), warm_steps=0, seconds=1.0)
    samples = time_steps(FakeStepper(), 4, 8, 3, effort)
    assert samples == {"ms": 500.0, "tokens": 4.0}, "two sources, a symbol each"
