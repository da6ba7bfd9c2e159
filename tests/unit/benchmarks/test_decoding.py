"""Tests of measurements in process: workers, and the parts of the GPU's benchmark that a CPU can run."""

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import SUITES, run
from benchmarks.decoding import decode, own_decoder
from benchmarks.job import Job


def test_our_own_workers_decode(tiny_bundle_path: Path) -> None:
    with own_decoder(tiny_bundle_path, "fp32").workers() as processes:
        samples = decode(processes, Job(num_sentences=3, num_tokens=5, vocabulary_size=12, batch_size=1))
    assert samples["speed"] > 0 and samples["ms"] > 0 and samples["batch"] == 1


@pytest.mark.slow
def test_a_quick_run_checks_measures_and_writes(tmp_path: Path) -> None:
    folders = ["--output", str(tmp_path), "--cache", str(tmp_path / "cache")]
    run(SUITES, ["gpu", "--provider", "cpu", "--quick", *folders])
    parts = {name: measured["part"] for name, measured in json.loads((tmp_path / "gpu.json").read_text()).items()}
    for search, works in (("greedy", ["1 rows", "8 rows"]), ("beam", ["8 rows"])):
        assert parts[search]["columns"] == ["system", "work", "ms"]
        rows = parts[search]["rows"]
        assert [row[1] for row in rows] == 3 * works and all(row[2] > 0 for row in rows)
        assert {precision for row in rows for precision in ("fp32", "fp16") if precision in row[0]} == {"fp32", "fp16"}
    page = (tmp_path / "gpu.md").read_text()
    assert "nothing of a GPU's speed" in page
