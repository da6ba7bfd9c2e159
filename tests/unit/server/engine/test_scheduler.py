import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.decoding.beam import BeamSearch
from runtime.decoding.options import DecodingOptions
from runtime.stepper import padded_width
from server.engine.request import EngineRequest
from server.engine.scheduler import Budget, Scheduler
from tests.fakes import SPECIAL_IDS

SEARCH = BeamSearch.start(DecodingOptions(max_length=5), SPECIAL_IDS)


def request(key: int, rows: int = 1, length: int = 3, deadline: float | None = None) -> EngineRequest:
    return EngineRequest(
        key=key, source_ids=(5,) * length, search=SEARCH, max_rows=rows, submitted=0.0, deadline=deadline
    )


def scheduler(max_rows: int = 8, max_source_positions: int = 1000) -> Scheduler:
    return Scheduler(Budget(max_rows=max_rows, max_source_positions=max_source_positions))


def keys(requests: list[EngineRequest]) -> list[int]:
    return [one.key for one in requests]


def test_first_come_first_served_within_the_rows() -> None:
    queue = scheduler(max_rows=8)
    for key, rows in enumerate((3, 4, 2, 1)):
        queue.add(request(key, rows))
    assert keys(queue.admit()) == [0, 1]
    assert queue.reserved_rows == 7 and queue.num_waiting == 2
    assert queue.admit() == []


def test_a_small_request_does_not_overtake_a_large_one() -> None:
    queue = scheduler(max_rows=8)
    for key, rows in enumerate((6, 8, 1)):
        queue.add(request(key, rows))
    assert keys(queue.admit()) == [0]
    assert queue.admit() == [], "2 has room, but 1 came first"
    queue.remove(0)
    assert keys(queue.admit()) == [1]
    queue.remove(1)
    assert keys(queue.admit()) == [2]


def test_padded_positions_are_those_of_the_widest() -> None:
    queue = scheduler(max_source_positions=48)
    queue.add(request(0, length=3))
    queue.add(request(1, length=8))
    queue.add(request(2, length=9))
    assert keys(queue.admit()) == [0, 1, 2], "three sources, padded to 16: just 48"
    queue.add(request(3, length=1))
    assert queue.admit() == []
    queue.remove(2)
    assert keys(queue.admit()) == [3], "without the wide one all are padded to 8"


def test_one_request_always_fits() -> None:
    queue = scheduler(max_source_positions=8)
    queue.add(request(0, length=100))
    assert keys(queue.admit()) == [0]


@pytest.mark.parametrize("admitted", [True, False])
def test_removing_frees_what_was_reserved(admitted: bool) -> None:
    queue = scheduler()
    queue.add(request(0, rows=5))
    if admitted:
        queue.admit()
    removed = queue.remove(0)
    assert removed is not None and removed.key == 0
    assert (queue.reserved_rows, queue.num_waiting, queue.num_running) == (0, 0, 0)
    assert queue.remove(0) is None


def test_deadlines_pass_for_the_waiting_and_the_running() -> None:
    queue = scheduler(max_rows=2)
    for key, deadline in enumerate((5.0, None, 3.0, 4.0)):
        queue.add(request(key, deadline=deadline))
    queue.admit()
    assert queue.expired(2.9) == []
    assert queue.expired(4.0) == [2, 3]
    queue.remove(0)
    assert queue.expired(9.0) == [], "it had ended before"


def test_deadlines_of_the_past_do_not_pile_up() -> None:
    queue = scheduler()
    queue.add(request(-1, deadline=5000.0))
    for key in range(5000):
        queue.add(request(key, deadline=10_000.0 - key))
        queue.remove(key)
    assert len(queue._deadlines) < 100
    assert queue.expired(5000.0) == [-1]


def test_more_rows_than_there_are_is_a_bug_of_the_caller() -> None:
    with pytest.raises(AssertionError):
        scheduler(max_rows=4).add(request(0, rows=5))


@dataclass
class Model:
    """What the scheduler must agree with: written as plainly as can be."""

    waiting: list[EngineRequest] = field(default_factory=list)
    running: list[EngineRequest] = field(default_factory=list)

    def fits(self, one: EngineRequest, budget: Budget) -> bool:
        together = [*self.running, one]
        width = max(padded_width(len(r.source_ids)) for r in together)
        rows = sum(r.max_rows for r in together)
        return rows <= budget.max_rows and (not self.running or width * len(together) <= budget.max_source_positions)

    def admit(self, budget: Budget) -> list[EngineRequest]:
        admitted = []
        while self.waiting and self.fits(self.waiting[0], budget):
            self.running.append(self.waiting.pop(0))
            admitted.append(self.running[-1])
        return admitted


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(8, 200))
def test_against_a_plain_model_under_random_traffic(seed: int, max_rows: int, positions: int) -> None:
    rng = random.Random(seed)
    budget = Budget(max_rows=max_rows, max_source_positions=positions)
    queue, model = Scheduler(budget), Model()
    now = 0.0
    for key in range(60):
        action = rng.random()
        if action < 0.5:
            deadline = None if rng.random() < 0.5 else now + rng.randrange(10)
            one = request(key, rng.randint(1, max_rows), rng.randint(1, 40), deadline)
            queue.add(one)
            model.waiting.append(one)
        elif action < 0.7 and (model.waiting or model.running):
            gone = rng.choice([*model.waiting, *model.running])
            assert queue.remove(gone.key) is gone
            model.waiting = [r for r in model.waiting if r is not gone]
            model.running = [r for r in model.running if r is not gone]
        else:
            now += rng.randrange(4)
            late = {r.key for r in [*model.waiting, *model.running] if r.deadline is not None and r.deadline <= now}
            assert set(queue.expired(now)) == late
            for gone_key in late:
                queue.remove(gone_key)
            model.waiting = [r for r in model.waiting if r.key not in late]
            model.running = [r for r in model.running if r.key not in late]
            assert queue.admit() == model.admit(budget)
        assert queue.reserved_rows == sum(r.max_rows for r in model.running) <= max_rows
        assert (queue.num_waiting, queue.num_running) == (len(model.waiting), len(model.running))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 8), st.integers(1, 40)), min_size=1, max_size=40))
def test_nobody_starves(sizes: list[tuple[int, int]]) -> None:
    """Everybody is admitted in the order of arrival, however large, as long as somebody ends in each round."""
    queue = scheduler(max_rows=8, max_source_positions=64)
    for key, (rows, length) in enumerate(sizes):
        queue.add(request(key, rows, length))
    order: list[int] = []
    running: list[int] = []
    for _ in range(2 * len(sizes) + 1):
        admitted = keys(queue.admit())
        order += admitted
        running += admitted
        if running:
            queue.remove(running.pop(0))
    assert order == list(range(len(sizes)))
