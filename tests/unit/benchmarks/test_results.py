"""Results: kept part by part, shown as tables, held against the yardsticks."""

import dataclasses
from pathlib import Path

import pytest

from benchmarks.command import write_pages
from benchmarks.peers.__main__ import SUITE as PEERS
from benchmarks.results import Measured, Part, Picture, Results, Series
from benchmarks.serving.open_loop import rate_at
from benchmarks.tables import markdown_table, shown
from benchmarks.training.machine import Machine
from benchmarks.yardsticks import NOT_MEASURED, YARDSTICKS, yardstick_rows

MACHINE = Machine(cpu="a processor", num_cores=2, load=0.1, date="2026-01-01", python="3.11.7")


def measured(**figures: float) -> Measured:
    picture = Picture(
        file="a.svg", title="p99", x_label="load", y_label="ms", series=[Series(name="ours", xs=[1.0], ys=[2.0])]
    )
    part = Part(
        title="A part", about="How.", columns=["what", "ms"], rows=[["a", 1.5]], figures=figures, pictures=[picture]
    )
    return Measured(part=part, command="python -m x", machine=MACHINE)


def test_a_part_that_is_run_again_takes_the_place_of_its_former_result_and_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "results" / "x.json"
    Results(path).add("one", measured(a=1.0))
    Results(path).add("two", measured(a=2.0))
    Results(path).add("one", measured(a=3.0))
    found = Results(path).parts
    assert list(found) == ["one", "two"]
    assert [one.part.figures["a"] for one in found.values()] == [3.0, 2.0]
    assert found["two"] == measured(a=2.0)


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


@pytest.mark.parametrize(("ours", "holds"), [(400.0, "yes"), (399.0, "no")])
def test_at_least_so_many_times_theirs(ours: float, holds: str, tmp_path: Path) -> None:
    Results(tmp_path / "peers.json").add("greedy", measured(attendant_int8=ours, plain_fp32=100.0))
    rows = {row[0]: row for row in yardstick_rows(tmp_path)}
    row = rows["greedy in process, int8, against a plain fp32 ORT loop, each at its best setting"]
    assert row[3:] == [f"{ours / 100:.2f} x", "at least 4 x", holds]
    # The peer of the other yardstick has no figure: that one stays open.
    assert rows["the same against CTranslate2, Transformer 6+2, int8"][3] == NOT_MEASURED


@pytest.mark.parametrize(("share", "holds"), [(0.1, "yes"), (0.11, "no")])
def test_at_most_such_a_share(share: float, holds: str, tmp_path: Path) -> None:
    Results(tmp_path / "serving.json").add("bookkeeping", measured(greedy_share_64=share))
    (row,) = (row for row in yardstick_rows(tmp_path) if str(row[0]).startswith("bookkeeping"))
    assert row[3:] == [f"{100 * share:.1f} %", "at most 10 %", holds]


def test_pages_say_where_and_by_which_command_and_show_the_pictures(tmp_path: Path) -> None:
    results = Results(tmp_path / "peers.json")
    results.add("greedy", measured(a=1.0))
    write_pages(PEERS, results, tmp_path)
    page = (tmp_path / "peers.md").read_text(encoding="utf-8")
    assert "`python -m x`, 2026-01-01: a processor, 2 cores" in page
    assert "![p99](a.svg)" in page and "| a | 1.50 |" in page
    drawn = (tmp_path / "a.svg").read_bytes()
    assert b"<svg" in drawn
    write_pages(PEERS, results, tmp_path)
    assert (tmp_path / "a.svg").read_bytes() == drawn, "the same results give the same picture"
    assert "not measured" in (tmp_path / "yardsticks.md").read_text(encoding="utf-8")


def test_figures_of_yardsticks_are_ratios_or_have_a_limit_of_their_own() -> None:
    assert len({one.what for one in YARDSTICKS}) == len(YARDSTICKS)
    for one in YARDSTICKS:
        assert one.theirs is not None or not one.at_least
        assert not (one.percent and one.theirs)
        assert dataclasses.asdict(one)["limit"] > 0


@pytest.mark.parametrize(
    ("latency", "rate"),
    [(5.0, None), (10.0, 100.0), (15.0, 150.0), (20.0, 200.0), (30.0, 220.0), (70.0, 300.0), (999.0, 300.0)],
)
def test_the_load_at_which_a_latency_is_kept(latency: float, rate: float | None) -> None:
    found = rate_at([(100.0, 10.0), (200.0, 20.0), (300.0, 70.0)], latency)
    assert found == (None if rate is None else pytest.approx(rate))
