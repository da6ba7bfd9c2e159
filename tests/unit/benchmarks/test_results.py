"""Results: kept part by part, shown as tables, held against the yardsticks."""

import shutil
from pathlib import Path

import pytest

from attendant.runtime.errors import UserError, VerificationFailed
from benchmarks import ROOT
from benchmarks.__main__ import SUITES
from benchmarks.command import Context, Suite, run
from benchmarks.harness.measurement import (
    Measurement,
    System,
    Unavailable,
    curves,
    figures,
    measure,
    part_of,
    running_system,
)
from benchmarks.harness.results import (
    Machine,
    Measured,
    Part,
    Picture,
    add_result,
    markdown_table,
    read_results,
    shown,
    write_page,
)
from benchmarks.serving.loops import rate_at, rising
from benchmarks.yardsticks import NOT_MEASURED, YARDSTICKS, write_yardsticks, yardstick_rows

RESULTS = ROOT / "benchmarks" / "results"
MACHINE = Machine(cpu="a processor", num_cores=2, load=0.1, date="2026-01-01", python="3.11.7")


def measured(**figures: float) -> Measured:
    picture = Picture(file="a.svg", title="p99", x_label="load", y_label="ms", series={"ours": [(1.0, 2.0)]})
    part = Part(columns=["what", "ms"], rows=[["a", 1.5]], figures=figures, pictures=[picture], note="A note.")
    return Measured(title="A part", about="How.", command="python -m x", machine=MACHINE, part=part)


def test_a_part_that_is_run_again_takes_the_place_of_its_former_result_and_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "results" / "x.json"
    add_result(path, "one", measured(a=1.0))
    add_result(path, "two", measured(a=2.0))
    found = add_result(path, "one", measured(a=3.0))
    assert found == read_results(path)
    assert list(found) == ["one", "two"]
    assert [one.part.figures["a"] for one in found.values()] == [3.0, 2.0]
    assert found["two"].part.figures == measured(a=2.0).part.figures
    assert found["two"].machine == MACHINE and found["two"].part.note == "A note."


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1234.5, "1,234"),
        (99.94, "99.9"),
        (12.34, "12.3"),
        (1.234, "1.23"),
        (0.01234, "0.0123"),
        (0.0, "0"),
        (-5.0, "-5.00"),
    ],
)
def test_numbers_have_three_significant_digits(number: float, text: str) -> None:
    assert shown(number) == text


def test_a_table_in_markdown() -> None:
    assert markdown_table(["what", "ms"], [["a", 1.5], ["b", None]]) == (
        "| what | ms |\n| --- | ---: |\n| a | 1.50 |\n| b |  |"
    )


def test_every_yardstick_is_a_row_whether_measured_or_not(tmp_path: Path) -> None:
    rows = yardstick_rows(tmp_path)
    assert len(rows) == len(YARDSTICKS)
    assert all(row[3] == NOT_MEASURED and row[5] is None for row in rows)


def test_published_pages_say_what_the_results_beside_them_say(tmp_path: Path) -> None:
    for path in RESULTS.glob("*.json"):
        shutil.copy(path, tmp_path)
    pages = {f"{name}.md": suite for name, suite in SUITES.items() if (RESULTS / f"{name}.json").exists()}
    for page, suite in pages.items():
        parts = read_results((tmp_path / page).with_suffix(".json"))
        write_page(tmp_path / page, suite.title, suite.about, parts)
    write_yardsticks(tmp_path)
    for page in (*pages, "yardsticks.md"):
        assert (tmp_path / page).read_text() == (RESULTS / page).read_text(), f"{page} is of other results"


@pytest.mark.parametrize(("ours", "holds"), [(400.0, "yes"), (399.0, "no")])
def test_at_least_so_many_times_theirs(ours: float, holds: str, tmp_path: Path) -> None:
    add_result(tmp_path / "peers.json", "greedy", measured(attendant_int8_speed=ours, plain_fp32_speed=100.0))
    rows = {row[0]: row for row in yardstick_rows(tmp_path)}
    row = rows["greedy in process, int8, against a plain fp32 ORT loop, each at its best setting"]
    assert row[3:] == [f"{ours / 100:.2f} x", "at least 4 x", holds, None]
    # The peer of the other yardstick has no figure: that one stays open.
    assert rows["the same against CTranslate2, Transformer 6+2, int8"][3] == NOT_MEASURED


@pytest.mark.parametrize(("share", "holds"), [(0.09, "yes"), (0.1, "no")])
def test_at_most_such_a_share(share: float, holds: str, tmp_path: Path) -> None:
    add_result(tmp_path / "serving.json", "bookkeeping", measured(int8_greedy_share_64=share))
    (row,) = (row for row in yardstick_rows(tmp_path) if str(row[0]).startswith("bookkeeping"))
    assert row[3:] == [f"{100 * share:.1f} %", "at most 9 %", holds, None]


def test_a_bound_stands_in_the_place_of_ours(tmp_path: Path) -> None:
    figures = {"unary_overhead_ms": 0.5, "unary_empty_ms": 0.1}
    add_result(tmp_path / "serving.json", "overhead", measured(**figures))
    (row,) = (row for row in yardstick_rows(tmp_path) if row[1] == "0.5 ms")
    assert row[3:] == ["0.50", "at most 0.3 ms", "no", "0.10: an empty grpc.aio service"]


def test_a_bound_of_another_run_is_what_it_was_beside_ours_there(tmp_path: Path) -> None:
    add_result(tmp_path / "peers.json", "greedy", measured(attendant_int8_speed=290.0, plain_fp32_speed=100.0))
    speeds = {"Attendant": 500.0, "bare graphs": 550.0}  # the machine was faster then
    decoded = {f"greedy, {name} int8, 2 workers x 1 thread_speed": speed for name, speed in speeds.items()}
    add_result(tmp_path / "serving.json", "decoding", measured(**decoded))
    assert yardstick_rows(tmp_path)[0][3:] == ["2.90 x", "at least 4 x", "no", "3.19 x: the bare graphs"]


def test_pages_say_where_and_by_which_command_and_show_the_pictures(tmp_path: Path) -> None:
    parts = add_result(tmp_path / "peers.json", "greedy", measured(a=1.0))
    write_page(tmp_path / "peers.md", "Peers", "About them.", parts)
    page = (tmp_path / "peers.md").read_text(encoding="utf-8")
    assert "`python -m x`, 2026-01-01: a processor, 2 cores" in page
    assert "![p99](a.svg)" in page and "| a | 1.50 |" in page
    drawn = (tmp_path / "a.svg").read_bytes()
    assert b"<svg" in drawn
    write_page(tmp_path / "peers.md", "Peers", "About them.", parts)
    assert (tmp_path / "a.svg").read_bytes() == drawn, "the same results give the same picture"
    write_yardsticks(tmp_path)
    assert "not measured" in (tmp_path / "yardsticks.md").read_text(encoding="utf-8")


def test_yardsticks_have_one_limit_and_are_ratios_or_have_a_unit_of_their_own() -> None:
    assert len({one.what for one in YARDSTICKS}) == len(YARDSTICKS)
    for one in YARDSTICKS:
        (limit,) = (value for value in (one.at_least, one.at_most) if value is not None)
        assert limit > 0
        assert one.unit or one.theirs is None


def test_systems_are_measured_in_turns_and_a_failure_keeps_its_row(capsys: pytest.CaptureFixture[str]) -> None:
    order: list[str] = []

    def visit(name: str, value: float):  # type: ignore[no-untyped-def]
        def ask(number: int) -> dict[str, float]:
            order.append(f"{name}{number}")
            if value < 0 and number == 2:
                raise Unavailable("no memory left")
            return {"speed": number * value} if value else {}

        return ask

    systems = [
        running_system("a", "A", {"": visit("a", 10.0), "_other": visit("a", 0.0)}),
        running_system("b", "B", {"": visit("b", -1.0)}),
        running_system("a", "A, other setting", {"": visit("c", 5.0)}),
    ]
    found = measure(systems, num_rounds=3)
    assert order == ["a1", "b1", "c1", "a1", "a2", "b2", "c2", "a2", "a3", "c3", "a3"]
    assert found[0].samples == {"speed": [10.0, 20.0, 30.0]} and found[0].spread("speed") == "10-30"
    assert found[1].problem == "no memory left" and not found[1].samples
    assert "B: no memory left\n" in capsys.readouterr().err
    with pytest.raises(Unavailable, match="B: no memory left"):
        found[1].median("speed")
    part = part_of(found, {"speed": "speed", "remarks": lambda one: ""}, best_by="speed")
    assert part.columns == ["system", "speed", "remarks"]
    assert part.rows == [["A", 20.0, ""], ["B", None, "not measured: no memory left"], ["A, other setting", 10.0, ""]]
    assert part.figures == figures(found, best_by="speed") == {"a_speed": 20.0}


def test_a_row_and_a_point_of_a_line_for_each_load_at_which_a_system_was_measured() -> None:
    systems = [
        running_system(
            "a", "A", {"_1": lambda number: {"speed": 2.0, "p99": 5.0}, "_8": lambda number: {"speed": 3.0}}
        ),
        running_system("b", "B", {"_8": lambda number: {"speed": 7.0}}),
    ]
    found = measure(systems, num_rounds=1)
    columns = {"clients": lambda one: one.point, "speed": "speed", "p99": "p99"}
    part = part_of(found, columns, points=["_1", "_8"])
    assert part.rows == [["A", "_1", 2.0, 5.0], ["A", "_8", 3.0, None], ["B", "_8", 7.0, None]]
    assert curves(found, "speed", {"_1": 1.0, "_8": 8.0}) == {"A": [(1.0, 2.0), (8.0, 3.0)], "B": [(8.0, 7.0)]}
    assert curves(found, "p99", {"_1": 1.0, "_8": 8.0}) == {"A": [(1.0, 5.0)]}


def test_several_samples_of_one_visit_count_each() -> None:
    one = Measurement(System(key="a", name="A", start=lambda: None))  # type: ignore[arg-type, return-value]
    assert one.take({"speed": [1.0, 2.0, 6.0], "batch": 8.0}) == "speed 6"
    one.take({"speed": [3.0], "batch": 8.0})
    assert one.median("speed") == 2.5 and one.samples["batch"] == [8.0, 8.0]


def test_a_command_runs_the_parts_it_is_asked_for_and_records_itself(tmp_path: Path) -> None:
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
    assert (
        "# X\n\nAbout X.\n\n## A title\n\nWhat is shown.\n\n`python -m benchmarks x --requests 3 --only fast`" in page
    )
    assert "| 3 |" in page
    run(suites, here)
    assert list(read_results(tmp_path / "x.json")) == ["fast", "other"], "the last one must be asked for"
    with pytest.raises(VerificationFailed, match="it is off"):
        run(suites, ["--against", "some", *here])
    assert list(read_results(tmp_path / "x.json")) == ["fast", "other", "against"]
    with pytest.raises(UserError, match="--only: there is no part 'slow'; there are fast, other, against"):
        run(suites, ["--only", "slow"])


@pytest.mark.parametrize(
    ("latency", "rate"),
    [(5.0, None), (10.0, 100.0), (15.0, 150.0), (20.0, 200.0), (30.0, 220.0), (70.0, 300.0), (999.0, 300.0)],
)
def test_the_load_at_which_a_latency_is_kept(latency: float, rate: float | None) -> None:
    found = rate_at([(100.0, 10.0), (200.0, 20.0), (300.0, 70.0)], latency)
    assert found == (None if rate is None else pytest.approx(rate))


def test_one_disturbed_visit_does_not_decide_the_load_at_which_a_latency_is_kept() -> None:
    quiet = [(100.0, 50.0), (150.0, 60.0), (200.0, 80.0), (250.0, 100.0), (300.0, 300.0)]
    disturbed = [(load, 260.0 if load == 150.0 else measured) for load, measured in quiet]
    assert rate_at(quiet, 250.0) == pytest.approx(287.5)
    assert rate_at(disturbed, 250.0) == pytest.approx(250 + 50 * (250 - 440 / 3) / (300 - 440 / 3))
    assert rate_at([(100.0, 300.0), (200.0, 100.0), (300.0, 400.0)], 250.0) == pytest.approx(225.0)


def test_a_sequence_that_rises_stays_and_one_that_falls_is_its_mean() -> None:
    assert rising([1.0, 2.0, 2.0, 5.0]) == [1.0, 2.0, 2.0, 5.0]
    assert rising([3.0, 2.0, 1.0]) == [2.0, 2.0, 2.0]
    assert rising([1.0, 4.0, 2.0, 3.0, 9.0, 8.0]) == [1.0, 3.0, 3.0, 3.0, 8.5, 8.5]
    assert rising([]) == []
