"""The harness: systems in turns, environments, results and their pages, yardsticks, the command."""

import shutil
from pathlib import Path

import pytest

from attendant.runtime.errors import UserError, VerificationFailed
from benchmarks import ROOT
from benchmarks.__main__ import SUITES, Suite, run
from benchmarks.harness import (
    Environment,
    Measurement,
    System,
    Unavailable,
    Visit,
    Visits,
    figures,
    measure,
    part_of,
    spread_of,
)
from benchmarks.results import (
    YARDSTICKS,
    Machine,
    Measured,
    Part,
    Picture,
    add_result,
    markdown_table,
    read_results,
    shown,
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


def test_a_repeated_part_replaces_its_former_result(tmp_path: Path) -> None:
    path = tmp_path / "results" / "x.json"
    add_result(path, "one", measured(a=1.0))
    add_result(path, "two", measured(a=2.0))
    parts = add_result(path, "one", measured(a=3.0))
    assert parts == read_results(path) == {"one": measured(a=3.0), "two": measured(a=2.0)}
    assert list(parts) == ["one", "two"]


@pytest.mark.parametrize(
    ("number", "text"),
    [(1234.5, "1,234"), (99.94, "99.9"), (1.234, "1.23"), (0.01234, "0.0123"), (0.0, "0"), (-5.0, "-5.00")],
)
def test_numbers_have_three_significant_digits(number: float, text: str) -> None:
    assert shown(number) == text


def test_a_page_has_tables_commands_and_pictures(tmp_path: Path) -> None:
    table = markdown_table(["what", "ms"], [["a", 1.5], ["b", None]])
    assert table == "| what | ms |\n| --- | ---: |\n| a | 1.50 |\n| b |  |"
    parts = add_result(tmp_path / "peers.json", "greedy", measured(a=1.0))
    write_page(tmp_path / "peers.md", "Peers", "About them.", parts)
    page, picture = (tmp_path / "peers.md").read_text(encoding="utf-8"), (tmp_path / "a.svg").read_bytes()
    assert "`python -m x`, 2026-01-01: a processor, 2 cores" in page and "A note." in page
    assert "![Parts](a.svg)" in page and "| a | 1.50 |" in page and b"<svg" in picture
    write_page(tmp_path / "peers.md", "Peers", "About them.", parts)
    assert (tmp_path / "a.svg").read_bytes() == picture, "the same results give the same picture"


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


def test_yardsticks_have_one_limit_and_figures_of_existing_parts(tmp_path: Path) -> None:
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


def test_shares_and_plain_figures_have_limits_and_bounds(tmp_path: Path) -> None:
    for share, holds in ((0.09, "yes"), (0.1, "no")):
        add_result(tmp_path / "serving.json", "bookkeeping", measured(int8_greedy_share_64=share))
        assert yardstick(tmp_path, "bookkeeping") == [f"{100 * share:.1f} %", "at most 9 %", holds, None]
    add_result(tmp_path / "serving.json", "overhead", measured(unary_overhead_ms=0.5, unary_empty_ms=0.1))
    row = yardstick(tmp_path, "server CPU above in-process decoding, per unary call")
    assert row == ["0.50", "at most 0.3 ms", "no", "0.10: an empty grpc.aio service"]


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


def test_a_row_for_each_load_at_which_a_system_was_measured() -> None:
    visits = {"_1": lambda number: {"speed": 2.0, "p99": 5.0}, "_8": lambda number: {"speed": 3.0}}
    systems = [running_system("a", "A", visits), running_system("b", "B", {"_8": lambda number: {"speed": 7.0}})]
    columns = {"clients": lambda m: m.point, "speed": "speed", "p99": "p99"}
    part = part_of(measure(systems, num_rounds=1), columns, points=["_1", "_8"])
    assert part.rows == [["A", "_1", 2.0, 5.0], ["A", "_8", 3.0, None], ["B", "_8", 7.0, None]]


def test_several_samples_of_one_visit_count_each() -> None:
    measurement = Measurement(System(key="a", name="A", start=lambda: iter([])))
    assert measurement.take({"speed": [1.0, 2.0, 6.0], "batch": 8.0}) == "speed 6"
    measurement.take({"speed": [3.0], "batch": 8.0})
    assert measurement.median("speed") == 2.5 and measurement.samples["batch"] == [8.0, 8.0]


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


@pytest.mark.parametrize("option", ["--minutes", "--requests"])
def test_numbers_must_be_positive(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(SUITES, ["training", option, "0"])
    assert f"{option}: must be positive, got 0" in capsys.readouterr().err


def test_a_missing_interpreter_is_named_and_those_of_pyenv_are_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = Environment(name="peer", package="peer==1", interpreters=("python2.4", "python9.9"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    with pytest.raises(Unavailable, match=r"it needs one of python2\.4, python9\.9, and none is here"):
        environment.install(tmp_path)
    python = tmp_path / "pyenv" / "versions" / "9.9.1" / "bin" / "python9.9"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\n[ "$1" = -c ] || { echo "called with $2"; exit 1; }\n')
    python.chmod(0o755)
    with pytest.raises(Unavailable, match="called with venv"):
        environment.install(tmp_path)


def test_packages_are_installed_in_turn_and_a_complete_environment_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr("benchmarks.harness.output_of", lambda command: commands.append(list(command)))
    peer = Environment(name="peer", package="peer==1", requirements=("torch==2",), own_dependencies=False)
    (tmp_path / "peer").mkdir()
    for _ in range(2):
        assert peer.install(tmp_path) == tmp_path / "peer" / "bin" / "python"
    create, requirements, package = commands
    assert create[1:4] == ["-m", "venv", "--clear"]
    assert requirements[-2:] == ["--disable-pip-version-check", "torch==2"] and package[-2:] == ["--no-deps", "peer==1"]
