import pytest

from attendant.server.engine.throughput import ThroughputEstimate


def test_nothing_is_expected_of_an_engine_that_has_not_answered() -> None:
    throughput = ThroughputEstimate()
    assert throughput.expected_seconds(5) == 0
    throughput.note(1.0, 0)
    assert throughput.expected_seconds(5) == 0


def test_steady_work() -> None:
    throughput = ThroughputEstimate()
    for _ in range(1000):
        throughput.note(0.1, 2)
    assert throughput.expected_seconds(10) == pytest.approx(0.5, rel=1e-3)


def test_the_long_past_fades() -> None:
    throughput = ThroughputEstimate()
    for _ in range(100):
        throughput.note(1.0, 1)
    for _ in range(1000):
        throughput.note(0.1, 1)
    assert throughput.expected_seconds(1) == pytest.approx(0.1, rel=1e-2)
