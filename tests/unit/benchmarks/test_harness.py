"""Tests of the harness (systems in turns, results and their pages, the command), and of measurements in process."""

import json
import shutil
from pathlib import Path

import pytest

from attendant.runtime.errors import UserError
from benchmarks import ROOT
from benchmarks.__main__ import SUITES, Suite, run
from benchmarks.decoding import decode, own_decoder
from benchmarks.harness import System, Unavailable, Visit, Visits, measure, part_of, spread
from benchmarks.job import Job
from benchmarks.results import Part, read_results, write_page
from benchmarks.workload import Context

RESULTS = ROOT / "benchmarks" / "results"


def test_published_pages_show_the_results_alongside_them(tmp_path: Path) -> None:
    for path in RESULTS.glob("*.json"):
        shutil.copy(path, tmp_path)
    pages = {f"{name}.md": suite for name, suite in SUITES.items() if (RESULTS / f"{name}.json").exists()}
    for page, suite in pages.items():
        parts = read_results((tmp_path / page).with_suffix(".json"))
        assert set(parts) <= set(suite.by_name), "every part can be measured again"
        write_page(tmp_path / page, suite.title, suite.about, parts)
    for page in pages:
        assert (tmp_path / page).read_text() == (RESULTS / page).read_text(), f"{page} shows other results"


def test_systems_are_measured_in_turns_and_a_failure_keeps_its_row(capsys: pytest.CaptureFixture[str]) -> None:
    order: list[str] = []

    def visit(name: str, value: float) -> Visit:
        def call(number: int) -> dict[str, float]:
            order.append(f"{name}{number}")
            if value < 0 and number == 2:
                raise Unavailable("no memory left")
            return {"speed": number * value} if value else {}

        return call

    turns: list[tuple[str, Visits]] = [
        ("A", {"fast": visit("a", 10.0), "other": visit("a", 0.0)}),
        ("B", {"fast": visit("b", -1.0)}),
        ("C", {"fast": visit("c", 5.0)}),
    ]
    systems = [System(name=name, start=lambda visits=visits: iter([visits])) for name, visits in turns]  # type: ignore[misc]
    measurements = measure(systems, num_rounds=3)
    assert order == ["a1", "b1", "c1", "a1", "a2", "b2", "c2", "a2", "a3", "c3", "a3"]
    first, failed, _ = measurements
    assert first.samples == {"speed": [10.0, 20.0, 30.0]} and spread(first) == "10-30"
    assert failed.problem == "no memory left" and not failed.samples
    assert "B: no memory left\n" in capsys.readouterr().err
    with pytest.raises(Unavailable, match="B: no memory left"):
        failed.median("speed")
    part = part_of(measurements)
    assert part.columns == ["system", "work", "per second", "slowest-fastest", "remarks"]
    row = ["B", None, None, None, "not measured: no memory left"]
    assert part.rows == [["A", "fast", 20.0, "10-30", ""], row, ["C", "fast", 10.0, "5-15", ""]]


def test_a_command_runs_the_chosen_parts_and_records_itself(tmp_path: Path) -> None:
    def fast(context: Context) -> Part:
        """A title.

        A description.
        """
        return Part(columns=["what"], rows=[[str(context.options.minutes)]])

    def against(context: Context) -> Part:
        return Part(columns=["what"])

    def other(context: Context) -> Part:
        return fast(context)

    suites = {"x": Suite("X", "About X.", (fast, other, against))}
    here = ["--output", str(tmp_path)]
    run(suites, ["x", "--only", "fast", "--minutes", "3", *here])
    page = (tmp_path / "x.md").read_text()
    section = f"## A title\n\nA description.\n\n`python -m benchmarks x --only fast --minutes 3 --output {tmp_path}`"
    assert page.startswith(f"# X\n\nAbout X.\n\n{section}") and "| 3.0 |" in page
    run(suites, here)
    assert list(read_results(tmp_path / "x.json")) == ["fast", "other"], "`against` only with its option"
    run(suites, ["--against", "some", *here])
    assert list(read_results(tmp_path / "x.json")) == ["fast", "other", "against"]
    with pytest.raises(UserError, match="--only: there is no part 'slow'; there are fast, other, against"):
        run(suites, ["--only", "slow"])


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
