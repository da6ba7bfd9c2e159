"""Tests of measurements in process: workers, and the parts of the GPU's benchmark that a CPU can run."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.onnx.stepper import OnnxStepper
from benchmarks.__main__ import SUITES, run
from benchmarks.decoding import own_decoder, workers
from benchmarks.gpu import TOLERANCES, Effort, largest_error, time_steps
from benchmarks.job import Job, program
from benchmarks.workload import QUICK, Context
from tests.fakes import FakeStepper


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(workload=QUICK, cache=tmp_path, quick=True)


@pytest.mark.parametrize("bare", [False, True])
def test_our_own_workers_decode(bare: bool, tiny_bundle_path: Path, context: Context) -> None:
    command = program("own_worker:work", path=str(tiny_bundle_path), precision="fp32", num_threads=1, bare=bare)
    with workers(replace(own_decoder(context, "fp32"), command=lambda: command)) as pool:
        samples = pool.run(Job(num_sentences=3, num_tokens=5, vocabulary_size=12, batch_size=1))
    assert samples["sentences"] == 3 and samples["ms"] > 0


@pytest.mark.slow
def test_a_quick_run_checks_measures_and_writes(tmp_path: Path) -> None:
    folders = ["--output", str(tmp_path), "--cache", str(tmp_path / "cache")]
    run(SUITES, ["gpu", "--provider", "cpu", "--quick", *folders])
    parts = {name: measured["part"] for name, measured in json.loads((tmp_path / "gpu.json").read_text()).items()}
    assert [row[-1] for row in parts["parity"]["rows"]] == ["true"] * 3
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


def test_parity_sees_a_kernel_that_ignores_lengths(tiny_bundle_path: Path, tiny_stepper: OnnxStepper) -> None:
    class Unequal(OnnxStepper):
        def encode(self, sources):  # type: ignore[no-untyped-def]
            longest = max(map(len, sources))
            return super().encode([[*source, *[0] * (longest - len(source))] for source in sources])

    bundle = open_bundle(tiny_bundle_path)
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
