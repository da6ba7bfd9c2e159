"""Admission: within the budgets, of like lengths, and nobody is passed over for ever."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attendant.runtime.decoding.options import DecodingOptions
from attendant.server.engine.request import EngineRequest
from attendant.server.engine.scheduler import MAX_OVERTAKEN, WINDOW, PriorityQueue, width_of


def request(key: int, rows: int = 1, length: int = 3) -> EngineRequest:
    return EngineRequest(
        key=key, source_ids=(5,) * length, options=DecodingOptions(max_length=5, beam_size=rows), submitted=0.0
    )


def queue_of(*requests: EngineRequest) -> PriorityQueue:
    queue = PriorityQueue()
    for one in requests:
        queue.add(one)
    return queue


def keys(requests: list[EngineRequest]) -> list[int]:
    return [one.key for one in requests]


def test_of_like_lengths_in_order_of_arrival_within_the_rows() -> None:
    queue = queue_of(*(request(key, rows) for key, rows in enumerate((3, 4, 2, 1))))
    assert keys(queue.admit(8, 1000)) == [0, 1]
    assert (queue.reserved_rows, queue.num_waiting, queue.num_running) == (7, 2, 2)
    assert queue.admit(8, 1000) == []


def test_a_small_request_does_not_overtake_a_large_one_that_is_first() -> None:
    queue = queue_of(*(request(key, rows) for key, rows in enumerate((6, 8, 1))))
    assert keys(queue.admit(8, 1000)) == [0]
    assert queue.admit(8, 1000) == [], "2 has room, but 1 came first"
    queue.remove(0)
    assert keys(queue.admit(8, 1000)) == [1]
    queue.remove(1)
    assert keys(queue.admit(8, 1000)) == [2]


def test_the_nearest_in_length_join_the_oldest() -> None:
    queue = queue_of(*(request(key, length=length) for key, length in enumerate((20, 60, 4, 22, 90, 17))))
    assert keys(queue.admit(3, 1000)) == [0, 3, 5], "all three are padded to 24"
    for key in (0, 3, 5):
        queue.remove(key)
    assert keys(queue.admit(3, 1000)) == [1, 4, 2], "and now the one that has waited longest leads"


def test_padded_positions_are_those_of_the_widest() -> None:
    queue = queue_of(*(request(key, length=length) for key, length in enumerate((3, 8, 9))))
    assert keys(queue.admit(8, 48)) == [0, 1, 2], "three sources, padded to 16: just 48"
    queue.add(request(3, length=1))
    assert queue.admit(8, 48) == []
    queue.remove(2)
    assert keys(queue.admit(8, 48)) == [3], "without the wide one all are padded to 8"


def test_those_that_join_have_a_budget_of_their_own() -> None:
    queue = queue_of(*(request(key, length=8) for key in range(5)))
    assert keys(queue.admit(9, 1000, 16)) == [0, 1]
    assert keys(queue.admit(9, 1000, 1)) == [2], "one always joins"
    assert keys(queue.admit(9, 1000)) == [3, 4]


def test_one_request_always_fits() -> None:
    assert keys(queue_of(request(0, rows=9, length=100)).admit(1, 8)) == [0]


@pytest.mark.parametrize("admitted", [True, False])
def test_removing_frees_what_was_reserved(admitted: bool) -> None:
    queue = queue_of(request(0, rows=5))
    if admitted:
        queue.admit(8, 1000)
    removed = queue.remove(0)
    assert removed is not None and removed.key == 0
    assert (queue.reserved_rows, queue.num_waiting, queue.num_running, bool(queue)) == (0, 0, 0, False)
    assert queue.remove(0) is None


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(8, 200), st.integers(8, 100))
def test_budgets_hold_under_random_traffic(seed: int, max_rows: int, positions: int, joining: int) -> None:
    rng = random.Random(seed)
    queue, waiting, running = PriorityQueue(), list[EngineRequest](), list[EngineRequest]()
    for key in range(80):
        action = rng.random()
        if action < 0.5:
            waiting.append(request(key, rng.randint(1, max_rows), rng.randint(1, 40)))
            queue.add(waiting[-1])
        elif action < 0.7 and (waiting or running):
            gone = rng.choice([*waiting, *running])
            assert queue.remove(gone.key) is gone
            waiting, running = ([one for one in those if one is not gone] for those in (waiting, running))
        else:
            admitted = queue.admit(max_rows, positions, joining)
            if waiting and not running:
                assert admitted, "something always goes on"
            if admitted:
                assert admitted[0] is waiting[0], "whoever has waited longest goes first"
            running += admitted
            waiting = [one for one in waiting if one not in admitted]
            widest = max(map(width_of, running), default=0)
            assert len(running) == 1 or widest * len(running) <= positions or not admitted
            assert len(admitted) <= 1 or len(admitted) * max(map(width_of, admitted)) <= joining
        assert queue.reserved_rows == sum(one.max_rows for one in running) <= max_rows
        assert (queue.num_waiting, queue.num_running) == (len(waiting), len(running))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 6))
def test_nobody_starves_behind_those_that_fit_better(seed: int, room: int) -> None:
    """However long newcomers of the favoured length keep coming: a bounded number of them goes ahead."""
    rng = random.Random(seed)
    queue = PriorityQueue()
    arrivals, order = 0, list[int]()
    for _ in range(400):
        for _ in range(rng.randint(0, room + 1)):
            queue.add(request(arrivals, length=rng.choice((4, 4, 4, 20, 90))))
            arrivals += 1
        for one in queue.admit(room, 10**6):
            order.append(one.key)
            queue.remove(one.key)
    for place, key in enumerate(order):
        later_ones = sum(other > key for other in order[:place])
        assert later_ones <= MAX_OVERTAKEN + WINDOW
    unanswered = set(range(arrivals)) - set(order)
    assert not unanswered or min(unanswered) > arrivals - len(unanswered) - MAX_OVERTAKEN - WINDOW


def test_sorting_saves_padding() -> None:
    rng = random.Random(5)
    lengths = [rng.randint(1, 64) for _ in range(512)]
    queue = queue_of(*(request(key, length=length) for key, length in enumerate(lengths)))
    computed = useful = 0
    while queue:
        group = queue.admit(16, 10**6)
        computed += len(group) * max(map(width_of, group))
        useful += sum(map(width_of, group))
        for one in group:
            queue.remove(one.key)
    in_order = sum(16 * max(-(-n // 8) * 8 for n in lengths[i : i + 16]) for i in range(0, 512, 16))
    assert useful / computed > 0.85 > useful / in_order
