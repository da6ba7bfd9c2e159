"""Tests of the harness: systems in turns, results and their pages, yardsticks, the command."""

import shutil
from pathlib import Path

import pytest

from attendant.runtime.errors import UserError, VerificationFailed
from benchmarks import ROOT
from benchmarks.__main__ import SUITES, Suite, run
from benchmarks.harness import System, Unavailable, Visit, Visits, figures, measure, part_of, spread_of
from benchmarks.results import (
    YARDSTICKS,
    Machine,
    Measured,
    Part,
    Picture,
    add_result,
    read_results,
    write_page,
    write_yardsticks,
    yardstick_rows,
)
from benchmarks.workload import Context

RESULTS = ROOT / "benchmarks" / "results"
MACHINE = Machine(cpu="a processor", num_cores=2, load=0.1, date="2026-01-01", python="3.11.7")


def running_system(key: str, name: str, visits: Visits) -> System:
    return System(key=key, name=name, start=lambda: iter([visits]))


def measured(**part_figures: float) -> Measured:
    picture = Picture(file="a.svg", title="Parts", x_label="%", bars=["ours"], sections={"a": [60.0], "b": [40.0]})
    part = Part(columns=["what", "ms"], rows=[["a", 1.5]], figures=part_figures, pictures=[picture], note="A note.")
    return Measured(title="A part", about="How.", command="python -m x", machine=MACHINE, part=part)


def test_published_pages_show_the_results_beside_them(tmp_path: Path) -> None:
    for path in RESULTS.glob("*.json"):
        shutil.copy(path, tmp_path)
    pages = {f"{name}.md": suite for name, suite in SUITES.items() if (RESULTS / f"{name}.json").exists()}
    for page, suite in pages.items():
        parts = read_results((tmp_path / page).with_suffix(".json"))
        assert set(parts) <= set(suite.by_name), "every part can be measured again"
        write_page(tmp_path / page, suite.title, suite.about, parts)
    write_yardsticks(tmp_path)
    for page in (*pages, "yardsticks.md"):
        assert (tmp_path / page).read_text() == (RESULTS / page).read_text(), f"{page} shows other results"


def test_yardsticks_have_one_limit_each_and_name_existing_parts(tmp_path: Path) -> None:
    rows = yardstick_rows(tmp_path)
    assert len({row[0] for row in rows}) == len(YARDSTICKS)
    assert all(row[3] == "not measured" and row[5] is None for row in rows)
    for stick in YARDSTICKS:
        assert stick["unit"] or "theirs" not in stick
        assert ("at_least" in stick) != ("at_most" in stick)
        for source in (stick, stick.get("bound", stick)):
            assert source["part"] in SUITES[source.get("suite", "serving")].by_name


def yardstick(folder: Path, what: str) -> list[object]:
    (row,) = (row for row in yardstick_rows(folder) if str(row[0]).startswith(what))
    return list(row[3:])


def test_a_ratio_of_two_figures_must_reach_its_limit(tmp_path: Path) -> None:
    for ours, holds in ((399.0, "no"), (400.0, "yes")):
        add_result(tmp_path / "peers.json", "greedy", measured(attendant_int8_speed=ours, plain_fp32_speed=100.0))
        assert yardstick(tmp_path, "greedy in process, int8") == [f"{ours / 100:.2f} x", "at least 4 x", holds, None]
    # The peer of the other yardstick has no figure.
    assert yardstick(tmp_path, "the same against CTranslate2, Transformer")[0] == "not measured"
    # The bound was measured in a faster run: ours improves by the same factor.
    names = {"Attendant": 500.0, "bare graphs": 550.0}
    speeds = {f"greedy, {name} int8, 2 workers x 1 thread_speed": speed for name, speed in names.items()}
    add_result(tmp_path / "serving.json", "decoding", measured(**speeds))
    assert yardstick(tmp_path, "greedy in process, int8")[3] == "4.40 x: the bare graphs"


def test_systems_are_measured_in_turns_and_a_failure_keeps_its_row(capsys: pytest.CaptureFixture[str]) -> None:
    order: list[str] = []

    def visit(name: str, value: float) -> Visit:
        def call(number: int) -> dict[str, float]:
            order.append(f"{name}{number}")
            if value < 0 and number == 2:
                raise Unavailable("no memory left")
            return {"speed": number * value} if value else {}

        return call

    systems = [
        running_system("a", "A", {"": visit("a", 10.0), "_other": visit("a", 0.0)}),
        running_system("b", "B", {"": visit("b", -1.0)}),
        running_system("a", "A, other setting", {"": visit("c", 5.0)}),
    ]
    measurements = measure(systems, num_rounds=3)
    assert order == ["a1", "b1", "c1", "a1", "a2", "b2", "c2", "a2", "a3", "c3", "a3"]
    assert measurements[0].samples == {"speed": [10.0, 20.0, 30.0]} and spread_of("speed")(measurements[0]) == "10-30"
    assert measurements[1].problem == "no memory left" and not measurements[1].samples
    assert "B: no memory left\n" in capsys.readouterr().err
    with pytest.raises(Unavailable, match="B: no memory left"):
        measurements[1].median("speed")
    part = part_of(measurements, {"speed": "speed", "remarks": lambda m: ""}, best_by="speed")
    assert part.columns == ["system", "speed", "remarks"]
    assert part.rows == [["A", 20.0, ""], ["B", None, "not measured: no memory left"], ["A, other setting", 10.0, ""]]
    assert part.figures == figures(measurements, best_by="speed") == {"a_speed": 20.0}


def test_a_command_runs_the_chosen_parts_and_records_itself(tmp_path: Path) -> None:
    def fast(context: Context) -> Part:
        """A title.

        What is shown.
        """
        return Part(columns=["what"], rows=[[str(context.options.requests)]])

    def against(context: Context) -> Part:
        return Part(columns=["what"], rows=[], problems=["it is off"])

    def other(context: Context) -> Part:
        return fast(context)

    suites = {"x": Suite(title="X", about="About X.", parts=(fast, other, against))}
    here = ["--output", str(tmp_path)]
    run(suites, ["x", "--only", "fast", "--requests", "3", *here])
    page = (tmp_path / "x.md").read_text()
    section = "## A title\n\nWhat is shown.\n\n`python -m benchmarks x --requests 3 --only fast`"
    assert page.startswith(f"# X\n\nAbout X.\n\n{section}") and "| 3 |" in page
    run(suites, here)
    assert list(read_results(tmp_path / "x.json")) == ["fast", "other"], "`against` only with its option"
    with pytest.raises(VerificationFailed, match="it is off"):
        run(suites, ["--against", "some", *here])
    assert list(read_results(tmp_path / "x.json")) == ["fast", "other", "against"]
    with pytest.raises(UserError, match="--only: there is no part 'slow'; there are fast, other, against"):
        run(suites, ["--only", "slow"])
