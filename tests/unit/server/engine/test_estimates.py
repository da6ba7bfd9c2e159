"""Tests of estimates that learn from made-up durations and lengths."""

import pytest

from attendant.runtime.decoding.options import DecodingOptions, scoring_options
from attendant.server.engine.client import Lengths
from attendant.server.engine.dispatch import ExpectedEnds, ThroughputEstimate
from attendant.server.engine.messages import EngineRequest, Priority, StepStats
from attendant.server.engine.pool import HANG_FACTOR, RoundBound
from attendant.server.engine.scheduler import BatchBudget

FREE = DecodingOptions(max_length=100)
BEAM = DecodingOptions(max_length=100, beam_size=4)


def step(rows: int, seconds: float, encode: float = 0.0, priority: Priority = Priority.INTERACTIVE) -> StepStats:
    phases = {"admit": 0.0, "step": seconds} | ({"encode": encode} if encode else {})
    return StepStats(priority, rows, 2 * (encode > 0), 0, rows, rows, phases)


def test_an_idle_engine_without_measurements_has_no_estimate() -> None:
    throughput = ThroughputEstimate()
    throughput.note(step(0, 0.0))
    assert throughput.step_seconds(8) == throughput.seconds(100, 5, 8) == throughput.encode_seconds == 0


def test_step_time_is_estimated_as_fixed_time_plus_time_per_row() -> None:
    throughput = ThroughputEstimate()
    for number in range(1000):
        rows = 1 + number % 8
        throughput.note(step(rows, 0.001 + 0.0001 * rows))
    assert throughput.step_seconds(1) == pytest.approx(0.0011)
    assert throughput.step_seconds(256) == pytest.approx(0.0266), "larger than any measured step"
    assert throughput.seconds(1600, 5, 256) == pytest.approx(100 * 0.0026), "in steps of twice the measured rows"
    assert throughput.seconds(1600, 5, 4) == pytest.approx(400 * 0.0014)


def test_without_different_sizes_time_is_proportional_to_rows() -> None:
    throughput = ThroughputEstimate()
    for _ in range(10):
        throughput.note(step(4, 0.004))
    assert throughput.step_seconds(8) == pytest.approx(0.008)


def test_encodings_are_part_of_the_work() -> None:
    throughput = ThroughputEstimate()
    for _ in range(10):
        throughput.note(step(0, 0.0, encode=0.02))
        throughput.note(step(10, 0.01))
    assert throughput.encode_seconds == pytest.approx(0.02)
    assert throughput.seconds(100, 4, 10) == pytest.approx(0.1 + 0.04), "two requests in each"


def test_throughput_ignores_bulk_work_and_forgets_the_past() -> None:
    throughput = ThroughputEstimate()
    for _ in range(100):
        throughput.note(step(4, 1.0))
    for _ in range(1000):
        throughput.note(step(4, 0.1))
        throughput.note(step(4, 9.0, priority=Priority.BULK))
    assert throughput.step_seconds(4) == pytest.approx(0.1, rel=1e-2)


def test_rows_are_freed_by_the_requests_that_end_first() -> None:
    ends = ExpectedEnds()
    assert ends.freeing(1, 0, 0) is None
    for key, sent, steps in ((0, 0.0, 90.0), (1, 1.0, 10.0), (2, 2.0, 20.0)):
        request = EngineRequest(key, (5, 6), BEAM, sent, None, Priority.INTERACTIVE, "", steps)
        ends.add(request, sent, step_seconds=0.1)
    assert ends.freeing(1, 0, 12) == ends.freeing(4, 0, 12) == (1.0, 10.0)
    assert ends.freeing(5, 0, 12) == ends.freeing(1, 1, 12) == (2.0, 20.0)
    assert ends.freeing(8, 1, 12) == ends.freeing(1, 50, 12) == (0.0, 90.0), "at last, even if that is not enough"
    ends.remove(1)
    ends.remove(7)
    assert ends.freeing(1, 0, 8) == (2.0, 20.0)


def test_lengths_are_means_by_width_and_beam() -> None:
    lengths = Lengths()
    assert lengths.expected(7, FREE) == 7, "the first answer is expected to be as long as its source"
    for _ in range(1000):
        lengths.note(5, FREE, 10)
        lengths.note(6, BEAM, 14)
        lengths.note(20, FREE, 40)
    assert lengths.expected(8, FREE) == pytest.approx(10)
    assert lengths.expected(3, BEAM) == pytest.approx(14)
    assert lengths.expected(17, FREE) == pytest.approx(40)
    assert lengths.expected(30, BEAM) == pytest.approx(30 * 2.1, rel=0.1), "in proportion, like the others"
    for _ in range(500):
        lengths.note(5, FREE, 50)
    assert lengths.expected(8, FREE) == pytest.approx(50, rel=0.01)


def test_lengths_keep_to_the_options() -> None:
    lengths = Lengths()
    lengths.note(8, FREE, 30)
    assert lengths.expected(8, DecodingOptions(max_length=9)) == 10, "the last step decides whether it ends"
    assert lengths.expected(8, DecodingOptions(max_length=90, min_length=50)) == 51
    assert lengths.expected(8, scoring_options([5, 6, 7], eos=3)) == 4


def test_lengths_set_by_callers_are_not_learned() -> None:
    lengths = Lengths()
    lengths.note(8, FREE, 30)
    lengths.note(8, DecodingOptions(max_length=3), 4)
    lengths.note(8, DecodingOptions(max_length=90, min_length=80), 81)
    lengths.note(8, scoring_options([5], eos=3), 2)
    assert lengths.expected(8, FREE) == 30
    lengths.note(8, DecodingOptions(max_length=60), 61)
    assert lengths.expected(8, FREE) > 30, "cut, but longer than expected"


def learn(budget: BatchBudget, fixed: float, per_unit: float, calls: int = 60) -> int:
    for _ in range(calls):
        units = budget.units
        budget.note(fixed + per_unit * units, units)
    return budget.units


@pytest.mark.parametrize(("fixed", "per_unit"), [(0.0, 0.001), (0.002, 0.0001), (0.0001, 0.00002)])
def test_a_budget_finds_the_size_that_takes_the_time(fixed: float, per_unit: float) -> None:
    units = learn(BatchBudget(0.004, 8), fixed, per_unit)
    assert fixed + per_unit * units == pytest.approx(0.004, rel=0.1, abs=per_unit)


def test_a_budget_approaches_unmeasured_sizes_step_by_step() -> None:
    budget = BatchBudget(1.0, 8)
    budget.note(0.0001, 8)
    assert budget.units == 16
    assert learn(BatchBudget(0.001, 8), 5.0, 1.0) == 1, "never nothing"


def test_a_budget_hardly_follows_an_interruption_but_follows_a_change() -> None:
    budget = BatchBudget(0.01, 8)
    before = learn(budget, 0.0, 0.0001)
    budget.note(5.0, before)
    assert budget.units > before / 2
    assert learn(budget, 0.0, 0.0001) == pytest.approx(before, rel=0.05)
    assert learn(budget, 0.0, 0.001) == pytest.approx(10, abs=1)


def test_a_budget_ignores_small_and_immeasurable_calls() -> None:
    budget = BatchBudget(0.01, 64)
    budget.note(0.002, 1)
    budget.note(0.0, 64)
    assert budget.units == 64


def test_rounds_may_take_several_times_their_usual_duration() -> None:
    bound = RoundBound(5.0)
    assert bound.seconds(100) == 5.0
    bound.note(100, 0.01)
    assert bound.seconds(100) == 5.0, "never below the floor"
    bound = RoundBound(5.0)
    bound.note(100, 2.0)
    assert bound.seconds(100) == HANG_FACTOR * 2.0
    assert bound.seconds(400) == HANG_FACTOR * 8.0, "four times the work"
    assert bound.seconds(3) == HANG_FACTOR * 2.0, "nothing smaller is known"
    bound.note(3, 0.5)
    assert bound.seconds(3) == 5.0


def test_one_slow_round_counts_little_and_many_count_much() -> None:
    bound = RoundBound(0.1)
    bound.note(8, 1.0)
    bound.note(8, 1000.0)
    assert bound.seconds(8) == pytest.approx(HANG_FACTOR * 1.2)
    for _ in range(50):
        bound.note(8, 10.0)
    assert bound.seconds(8) == pytest.approx(HANG_FACTOR * 10.0, rel=0.01)
    bound.note(8, 0.0)
    assert bound.seconds(8) > HANG_FACTOR * 9.8, "it forgets slowly"
