"""What a step takes, learned from steps that the test makes up."""

import pytest

from attendant.server.engine.estimates import ThroughputEstimate
from attendant.server.engine.request import Priority, StepStats


def step(rows: int, seconds: float, encode: float = 0.0, priority: Priority = Priority.INTERACTIVE) -> StepStats:
    phases = {"admit": 0.0, "step": seconds} | ({"encode": encode} if encode else {})
    return StepStats(priority, rows, 2 * (encode > 0), 0, rows, rows, phases)


def test_nothing_is_expected_of_an_engine_that_has_done_nothing() -> None:
    throughput = ThroughputEstimate()
    throughput.note(step(0, 0.0))
    assert throughput.step_seconds(8) == throughput.seconds(100, 5, 8) == throughput.encode_seconds == 0


def test_a_fixed_time_and_a_time_per_row() -> None:
    throughput = ThroughputEstimate()
    for number in range(1000):
        rows = 1 + number % 8
        throughput.note(step(rows, 0.001 + 0.0001 * rows))
    assert throughput.step_seconds(1) == pytest.approx(0.0011)
    assert throughput.step_seconds(256) == pytest.approx(0.0266), "larger than any that was seen"
    assert throughput.seconds(1600, 5, 256) == pytest.approx(100 * 0.0026), "in steps of twice what was seen"
    assert throughput.seconds(1600, 5, 4) == pytest.approx(400 * 0.0014)


def test_steps_of_one_size_say_nothing_of_others() -> None:
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


def test_bulk_work_does_not_count_and_the_long_past_fades() -> None:
    throughput = ThroughputEstimate()
    for _ in range(100):
        throughput.note(step(4, 1.0))
    for _ in range(1000):
        throughput.note(step(4, 0.1))
        throughput.note(step(4, 9.0, priority=Priority.BULK))
    assert throughput.step_seconds(4) == pytest.approx(0.1, rel=1e-2)
