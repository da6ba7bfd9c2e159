"""How much bulk work at once, and whose turn, on durations that the test makes up."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attendant.server.engine.estimates import BatchBudget
from attendant.server.engine.scheduler import FairShare


def learn(budget: BatchBudget, fixed: float, per_unit: float, calls: int = 60) -> int:
    for _ in range(calls):
        units = budget.units
        budget.note(fixed + per_unit * units, units)
    return budget.units


@pytest.mark.parametrize(("fixed", "per_unit"), [(0.0, 0.001), (0.002, 0.0001), (0.0001, 0.00002)])
def test_it_finds_the_size_that_takes_the_time(fixed: float, per_unit: float) -> None:
    units = learn(BatchBudget(0.004, 8), fixed, per_unit)
    assert fixed + per_unit * units == pytest.approx(0.004, rel=0.1, abs=per_unit)


def test_it_approaches_what_it_has_not_measured() -> None:
    budget = BatchBudget(1.0, 8)
    budget.note(0.0001, 8)
    assert budget.units == 16


def test_something_always_goes_on() -> None:
    assert learn(BatchBudget(0.001, 8), 5.0, 1.0) == 1


def test_an_interruption_does_not_count_for_much() -> None:
    budget = BatchBudget(0.01, 8)
    before = learn(budget, 0.0, 0.0001)
    budget.note(5.0, before)
    assert budget.units > before / 2
    assert learn(budget, 0.0, 0.0001) == pytest.approx(before, rel=0.05)


def test_what_becomes_dearer_becomes_less() -> None:
    budget = BatchBudget(0.01, 8)
    learn(budget, 0.0, 0.0001)
    assert learn(budget, 0.0, 0.001) == pytest.approx(10, abs=1)


def test_small_calls_say_little() -> None:
    budget = BatchBudget(0.01, 64)
    budget.note(0.002, 1)
    budget.note(0.0, 64)
    assert budget.units == 64


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.floats(0.001, 1.0), st.floats(0.001, 1.0), st.floats(0.05, 0.5))
def test_bulk_has_its_share_and_no_more(seed: int, interactive: float, bulk: float, share: float) -> None:
    """While both always want to go on: neither starves, whatever their rounds take."""
    rng = random.Random(seed)
    fair_share = FairShare()
    seconds = {True: 0.0, False: 0.0}
    for _ in range(3000):
        is_bulk = fair_share.is_turn()
        took = (bulk if is_bulk else interactive) * rng.uniform(0.5, 1.5)
        seconds[is_bulk] += took
        fair_share.note(took, first=not is_bulk, contended=True, share=share)
    total = seconds[True] + seconds[False]
    # The edges: a round that has begun, and one that was earned but not had.
    assert abs(seconds[True] - share * total) <= 4 * max(interactive, bulk)


def test_what_was_done_alone_is_neither_earned_nor_owed() -> None:
    fair_share = FairShare()
    for _ in range(100):
        fair_share.note(1.0, first=True, contended=False, share=0.5)
    assert not fair_share.is_turn()
    for _ in range(100):
        fair_share.note(1.0, first=False, contended=False, share=0.5)
    fair_share.note(1.0, first=True, contended=True, share=0.5)
    assert fair_share.is_turn(), "it is not made to pay for the time that nobody else wanted"
