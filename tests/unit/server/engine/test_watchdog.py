"""Bounds that are learned, on plain numbers."""

import pytest

from attendant.server.engine.estimates import FACTOR, RoundBound
from attendant.server.engine.supervision import Silence


def test_the_floor_holds_as_long_as_nothing_slower_is_known() -> None:
    bound = RoundBound(5.0)
    assert bound.seconds(100) == 5.0
    bound.note(100, 0.01)
    assert bound.seconds(100) == 5.0


def test_it_learns_what_rounds_take_and_more_work_may_take_longer() -> None:
    bound = RoundBound(5.0)
    bound.note(100, 2.0)
    assert bound.seconds(100) == FACTOR * 2.0
    assert bound.seconds(400) == FACTOR * 8.0, "four times the work"
    assert bound.seconds(3) == FACTOR * 2.0, "nothing smaller is known"
    bound.note(3, 0.5)
    assert bound.seconds(3) == 5.0


def test_one_slow_round_says_little_and_many_say_much() -> None:
    bound = RoundBound(0.1)
    bound.note(8, 1.0)
    bound.note(8, 1000.0)
    assert bound.seconds(8) == pytest.approx(FACTOR * 1.2)
    for _ in range(50):
        bound.note(8, 10.0)
    assert bound.seconds(8) == pytest.approx(FACTOR * 10.0, rel=0.01)
    bound.note(8, 0.0)
    assert bound.seconds(8) > FACTOR * 9.8, "it forgets slowly"


def test_time_in_which_nobody_could_hear_does_not_count() -> None:
    silence = Silence(0.5)
    for elapsed in (0.5, 60.0, 0.5):
        silence.tick(elapsed)
    assert silence.seconds == 1.5
    silence.heard()
    silence.tick(0.5)
    assert silence.seconds <= 0.0, "it may have been just now"
