"""The simulation against closed forms, and what must hold whatever the costs are."""

import itertools
import math
import statistics
from pathlib import Path

import pytest
import simpy

from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.bundle_stepper import open_stepper
from attendant.runtime.errors import UserError
from attendant.server.bench.load import Load
from benchmarks.capacity import measuring, planning
from benchmarks.capacity.__main__ import run
from benchmarks.capacity.costs import Costs, Grid, Observed, Turn, between, read_costs
from benchmarks.capacity.planning import bound, most, p99, planned
from benchmarks.capacity.simulation import Events, Lengths, Processors, Setting, Simulated, simulate
from benchmarks.capacity.validation import COLUMNS, compared

ONE_STEP = [(8, 1)]
SERVICE = 0.01


def grid(*rows_and_seconds: tuple[int, float]) -> Grid:
    """The same at every width."""
    rows, seconds = zip(*rows_and_seconds, strict=True)
    return Grid(rows=rows, widths=(8,), seconds=tuple((one,) for one in seconds))


def costs(**given: object) -> Costs:
    """Steps take SERVICE, and nothing else takes anything."""
    nothing = grid((1, 0.0))
    fields = {"measured": "", "step": grid((1, SERVICE)), "encode": nothing, "change": nothing, "beside": {1: 1.0}}
    fields |= {"round_seconds": {1: 0.0}, "call_seconds": 0.0, "generator_seconds": 0.0}
    return Costs(**fields | given)


def open_loop(
    costs: Costs, setting: Setting, lengths: Lengths, rate: float, seconds: float, seed: int = 1
) -> Simulated:
    return simulate(costs, setting, lengths, Load(kind="open", rate=rate, seconds=seconds, seed=seed))


def closed_loop(
    costs: Costs, setting: Setting, lengths: Lengths, num_clients: int, seconds: float, seed: int = 1
) -> Simulated:
    return simulate(costs, setting, lengths, Load(kind="closed", num_clients=num_clients, seconds=seconds, seed=seed))


def mean(found: Simulated) -> float:
    return sum(found.latencies) / len(found.latencies)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_one_row_is_an_m_d_1_queue(load: float) -> None:
    """Pollaczek and Khinchine: the mean wait is load / (2 (1 - load)) services."""
    found = open_loop(costs(), Setting(max_rows=1), ONE_STEP, load / SERVICE, 250.0)
    assert mean(found) == pytest.approx(SERVICE * (1 + load / (2 * (1 - load))), rel=0.08)


@pytest.mark.parametrize("load", [0.3, 0.8])
def test_the_front_is_an_m_d_1_queue_too(load: float) -> None:
    """Two visits of half a call each to one thread, and nothing else: work comes in twice as often, half as large. The
    second visits don't come at random, so only the bounds are known: one visit's wait, and two of a whole call's.
    """
    found = open_loop(costs(step=grid((1, 0.0)), call_seconds=SERVICE), Setting(), ONE_STEP, load / SERVICE, 100.0)
    least, most = SERVICE * (1 + load / (4 * (1 - load))), SERVICE * (1 + load / (1 - load))
    assert least < mean(found) < most


def test_two_workers_of_one_row_are_an_m_d_2_queue() -> None:
    """Against Cosmetatos's approximation of M/D/c from M/M/c, which is within some percent."""
    load, number = 0.8, 2
    setting = Setting(num_workers=number, max_rows=1, num_cores=4)
    found = open_loop(costs(), setting, ONE_STEP, number * load / SERVICE, 150.0)
    offered = number * load
    erlang_c = (offered**number / math.factorial(number) / (1 - load)) / (
        1 + offered + offered**number / math.factorial(number) / (1 - load)
    )
    exponential = erlang_c * SERVICE / (number * (1 - load))
    corrected = (
        exponential / 2 * (1 + (1 - load) * (number - 1) * (math.sqrt(4 + 5 * number) - 2) / (16 * load * number))
    )
    assert mean(found) - SERVICE == pytest.approx(corrected, rel=0.2)


def test_a_batch_takes_one_step_for_all() -> None:
    """A closed loop of as many clients as rows: each request takes its own steps, no more."""
    found = closed_loop(costs(), Setting(), [(8, 5)], 16, 10.0)
    assert found.answered_per_second == pytest.approx(16 / (5 * SERVICE), rel=0.02)


def test_workers_beyond_the_processors_do_not_help() -> None:
    one, two, shared = (
        closed_loop(costs(), Setting(num_workers=workers, num_cores=cores, max_rows=1), ONE_STEP, 8, 5.0)
        for workers, cores in ((1, 2), (2, 2), (2, 1))
    )
    assert two.answered_per_second == pytest.approx(2 * one.answered_per_second, rel=0.02)
    assert shared.answered_per_second == pytest.approx(one.answered_per_second, rel=0.02)


def test_the_front_goes_before_the_workers() -> None:
    """On one processor, a call is taken in at once, however long a step takes."""
    slow = costs(step=grid((1, 1.0)), call_seconds=0.01)
    found = closed_loop(slow, Setting(num_cores=1), ONE_STEP, 1, 10.0)
    assert mean(found) == pytest.approx(1.01)


def test_a_worker_waits_only_while_threads_have_all_processors() -> None:
    """Two of them do for a tenth of a second."""
    env = simpy.Environment()
    processors, ended = Processors(env, 2), []

    def working(begin: float, seconds: float, *, is_worker: bool) -> Events:
        yield env.timeout(begin)
        yield from processors.work(seconds, is_worker=is_worker)
        ended.append(env.now)

    env.process(working(0.0, 1.0, is_worker=True))
    env.process(working(0.1, 0.6, is_worker=False))
    env.process(working(0.6, 0.2, is_worker=False))
    env.run()
    assert ended == pytest.approx([0.7, 0.8, 1.1])


MIX = [(length, length) for length in (5, 10, 20, 40)]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_little_s_law_and_every_request_is_answered(num_workers: int) -> None:
    everything = costs(
        step=grid((1, 0.002), (64, 0.006)),
        encode=grid((1, 0.001), (8, 0.004)),
        change=grid((1, 0.0005)),
        call_seconds=0.0004,
        round_seconds={1: 0.0001},
    )
    for seed in (1, 2):
        setting, rate = Setting(num_workers=num_workers), 60.0
        found = open_loop(everything, setting, MIX, rate, 20.0, seed=seed)
        assert len(found.latencies) == pytest.approx(rate * 20.0, rel=0.1)
        alone = min(steps for _, steps in MIX) * 0.0021 + 0.001 + 0.0004
        assert min(found.latencies) >= alone * 0.999
        clients = closed_loop(everything, setting, MIX, 16, 10.0, seed=seed)
        assert clients.answered_per_second * mean(clients) == pytest.approx(16, rel=0.03)


def test_the_same_seed_gives_the_same_and_more_load_no_shorter_waits() -> None:
    def latency(rate: float, lengths: Lengths = MIX) -> float:
        return mean(open_loop(costs(), Setting(max_rows=4), lengths, rate, 20.0))

    assert latency(15.0) == latency(15.0)
    found = [latency(rate) for rate in (2.0, 8.0, 14.0, 18.0)]
    assert all(less <= more for less, more in itertools.pairwise(found))


def test_costs_between_and_beyond_the_sizes() -> None:
    found = Grid(rows=(1, 4), widths=(8, 16), seconds=((1.0, 2.0), (4.0, 6.0)))
    assert found.at(1, 8) == 1.0 and found.at(4, 16) == 6.0
    assert found.at(2.5, 12) == pytest.approx((1.0 + 2.0 + 4.0 + 6.0) / 4)
    assert found.at(7, 8) == pytest.approx(7.0) and found.at(1, 4) == 1.0
    assert between({1: 1.0, 4: 1.6}, 2) == pytest.approx(1.2)
    assert between({1: 1.0, 4: 1.6}, 64) == pytest.approx(1.6)


def test_a_file_of_costs_that_is_none_is_a_line(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    with pytest.raises(UserError, match="can't be read"):
        read_costs(path)
    path.write_text("{}")
    with pytest.raises(UserError, match=r"costs.json: \w+: Field required; `measure` writes it anew"):
        read_costs(path)
    path.write_text(costs().model_dump_json())
    assert read_costs(path) == costs()


def test_a_plan_keeps_its_bound_and_its_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "NUM_REQUESTS", 200)
    simple = costs(step=grid((1, 0.002), (64, 0.006)), call_seconds=0.001)
    settings = [Setting(num_workers=number, num_cores=number + 1, max_rows=64) for number in (1, 4)]
    one, four = planned(simple, settings, MIX, rate=1e6, p99_seconds=0.3, core_hour=0.05)
    for plan in (one, four):
        assert 0 < plan.rate <= bound(simple, plan.setting, MIX)
        assert p99(simple, plan.setting, MIX, plan.rate) <= 0.3
        assert plan.num_servers * plan.rate >= 1e6 > (plan.num_servers - 1) * plan.rate
        assert plan.num_cores == plan.num_servers * plan.setting.num_workers + 1000
        assert plan.price == pytest.approx(plan.num_cores * 0.05 / 3.6e9 * 1e6)
    assert one.rate < four.rate <= 1 / 0.001
    assert planned(simple, settings, MIX, rate=1.0, p99_seconds=0.01, core_hour=0.05) == []
    assert most(simple, settings[0], MIX, 0.15) <= one.rate


def turn(milliseconds: float, others_share: float = 0.0) -> Turn:
    return Turn(answered_per_second=80.0, p50_ms=milliseconds, p99_ms=milliseconds, others_share=others_share)


def observation(**given: object) -> Observed:
    fields = {"num_workers": 1, "num_cores": 2, "clients": 4, "rate": 0.0, "turns": (turn(49.0), turn(51.0))}
    return Observed.model_validate(fields | given)


def test_what_was_observed_stands_beside_what_is_simulated() -> None:
    """Four clients of five steps each, and twice as slow as simulated at random."""
    (closed, opened) = compared(costs(observed=(observation(), observation(clients=0, rate=1.0))), [(8, 5)])
    closed_row, opened_row = (dict(zip(COLUMNS, row, strict=True)) for row in (closed, opened))
    assert closed_row["load"] == "--workers 1, 4 clients" and str(closed_row["requests/s, off"])[1:] == "0 %"
    assert opened_row["p50 ms"] == 50.0 and opened_row["p50 ms, simulated"] == pytest.approx(50.0)
    assert opened_row["p50 ms, turns"] == "-2 % to +2 %" and str(opened_row["p50 ms, off"])[1:] == "0 %"


def test_turns_beside_other_programs_do_not_count() -> None:
    assert observation(turns=(turn(50.0), turn(90.0, 0.9))).alone == [turn(50.0)]
    assert observation(turns=(turn(70.0, 0.5), turn(90.0, 0.9))).alone == [turn(70.0, 0.5)]


def test_the_costs_of_a_bundle_are_measured(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "WIDTHS", (8,))
    bundle = open_bundle(tiny)
    stepper = open_stepper(bundle, "fp32", "cpu", 1)
    encode = measuring._grid((1, 2), lambda *size: statistics.median(measuring._encodings(bundle, stepper, *size)))
    assert len(encode.seconds) == 2 and encode.at(1, 8) > 0
    rounds = measuring._rounds(bundle, stepper, 4, 8)
    assert {stats.num_rows for stats in rounds} <= {3, 4}
    assert sum(stats.num_encoded for stats in rounds) > 0, "some come"
    assert all(measuring._step_seconds(stats) > 0 for stats in rounds)
    assert measuring._change(rounds, encode, 8) >= 0


def test_the_command_plans_and_tells_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "NUM_REQUESTS", 200)
    path, lengths, picture = tmp_path / "costs.json", tmp_path / "lengths.json", tmp_path / "plan.svg"
    path.write_text(costs(call_seconds=0.001).model_dump_json())
    lengths.write_text("[[8, 2]]")
    arguments = ["plan", str(path), "--rate", "1000", "--lengths", str(lengths), "--workers", "1", "--max-rows", "4"]
    run([*arguments, "--p99-ms", "200", "--picture", str(picture)])
    assert "| --workers 1 --max-rows 4 |" in capsys.readouterr().out
    assert picture.stat().st_size > 0
    with pytest.raises(UserError, match="--p99-ms 1: no such server"):
        run([*arguments, "--p99-ms", "1"])
    lengths.write_text("[8]")
    with pytest.raises(UserError, match=r"--lengths .* must be a JSON list"):
        run([*arguments, "--p99-ms", "200"])
