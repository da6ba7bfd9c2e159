"""Tests of the scheduler on plain values: which requests run, and which priority has the next round."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attendant.runtime.decoding.options import DecodingOptions
from attendant.server.engine.messages import BulkRoom, EngineRequest, Priority
from attendant.server.engine.scheduler import (
    HEAVY_PART,
    MAX_OVERTAKEN,
    MAX_STEPS_TO_FILL,
    MAX_STEPS_TO_STREAM,
    WINDOW,
    Budget,
    FairShare,
    PriorityQueue,
    Scheduler,
    width_of,
)

OPTIONS = DecodingOptions(max_length=5)
INTERACTIVE, HEAVY, BULK = Priority


def request(
    key: int,
    priority: Priority = INTERACTIVE,
    rows: int = 1,
    length: int = 3,
    deadline: float | None = None,
    client: str = "",
    start_by: float | None = None,
) -> EngineRequest:
    return EngineRequest(
        key=key,
        source_ids=(5,) * length,
        options=replace(OPTIONS, beam_size=rows),
        submitted=0.0,
        deadline=deadline,
        priority=priority,
        client=client,
        start_by=start_by,
    )


def scheduler(max_rows: int = 8, max_source_positions: int = 1000, bulk_seconds: float | None = None) -> Scheduler:
    return Scheduler(Budget(max_rows=max_rows, max_source_positions=max_source_positions, bulk_seconds=bulk_seconds))


def keys(requests: list[EngineRequest]) -> list[int]:
    return [request.key for request in requests]


@pytest.mark.parametrize("other", [HEAVY, BULK])
def test_an_interactive_request_is_admitted_beyond_other_work(other: Priority) -> None:
    queue = scheduler(max_rows=4)
    for key in range(20):
        queue.add(request(key, other, client="flood"))
    assert queue.next_priority() is other
    assert len(queue.admit(other)) == 4
    queue.end_round(other, 1.0)
    queue.add(request(99, rows=4))
    assert queue.next_priority() is INTERACTIVE
    assert keys(queue.admit(INTERACTIVE)) == [99]
    assert (queue.num_waiting(other), queue.num_waiting(INTERACTIVE)) == (16, 0)
    assert (queue.num_running(other), queue.num_running(INTERACTIVE)) == (4, 1)


def running(num_running: int) -> Scheduler:
    """Returns a scheduler that runs the requests with the keys 0, 1, ..."""
    queue = scheduler(max_rows=1000, max_source_positions=100_000)
    for key in range(num_running):
        queue.add(request(key))
    assert len(queue.admit(INTERACTIVE)) == num_running
    return queue


def test_a_new_request_alongside_many_waits_to_fill_a_batch() -> None:
    queue = running(4)
    for key in (101, 102, 103):
        queue.add(request(key))
        assert queue.admit(INTERACTIVE) == []
    queue.add(request(104))
    assert keys(queue.admit(INTERACTIVE)) == [101, 102, 103, 104]


def test_a_new_request_waits_a_limited_number_of_steps_to_fill_a_batch() -> None:
    queue = running(4)
    for first in (101, 201):
        queue.add(request(first))
        for _ in range(MAX_STEPS_TO_FILL):
            assert queue.admit(INTERACTIVE) == []
        assert keys(queue.admit(INTERACTIVE)) == [first]


def test_a_streamed_request_waits_for_fewer_steps_and_takes_the_others_along() -> None:
    queue = running(4)
    queue.add(request(101)._replace(streams=True))
    queue.add(request(102))
    for _ in range(MAX_STEPS_TO_STREAM):
        assert queue.admit(INTERACTIVE) == []
    assert keys(queue.admit(INTERACTIVE)) == [101, 102]


def test_steps_without_new_requests_are_not_counted_as_waiting() -> None:
    queue = running(2)
    queue.add(request(101))
    assert queue.admit(INTERACTIVE) == []
    queue.remove(101)
    for _ in range(10):
        assert queue.admit(INTERACTIVE) == []
    queue.add(request(102))
    for _ in range(MAX_STEPS_TO_FILL):
        assert queue.admit(INTERACTIVE) == []
    assert keys(queue.admit(INTERACTIVE)) == [102]


def test_a_request_that_waits_to_fill_a_batch_joins_when_the_others_have_ended() -> None:
    queue = running(2)
    queue.add(request(101))
    assert queue.admit(INTERACTIVE) == []
    for key in range(2):
        queue.remove(key)
    assert keys(queue.admit(INTERACTIVE)) == [101]


def test_bulk_joins_in_groups() -> None:
    queue = scheduler(max_rows=8)
    for key in range(20):
        queue.add(request(key, BULK))
    assert len(queue.admit(BULK)) == 8
    queue.remove(0)
    assert queue.admit(BULK) == [], "one place is not worth an encoding"
    queue.remove(1)
    assert len(queue.admit(BULK)) == 2


def test_bulk_calls_are_as_large_as_their_time_allows() -> None:
    queue = scheduler(max_rows=256, max_source_positions=10**6, bulk_seconds=0.01)
    for key in range(2000):
        queue.add(request(key, BULK, length=8))
    running = 0
    for _ in range(200):
        joined = len(queue.admit(BULK))
        if joined:
            queue.note_encoding(BULK, 0.0001 * 8 * joined, 8 * joined)
            running += joined
        else:
            queue.note_step(BULK, 0.001 + 0.0003 * running, running)
            # Half of the requests end, so that others are admitted up to the limit.
            for key in list(queue._queues[BULK].running)[: running // 2]:
                queue.remove(key)
                running -= 1
    limits = queue._queues[BULK].limits
    assert limits is not None
    assert limits.rows.units == pytest.approx(30, abs=3)
    assert limits.positions.units == pytest.approx(100, abs=5)


def test_bulk_calls_grow_while_they_are_alone() -> None:
    queue = scheduler(max_rows=256, max_source_positions=10**6, bulk_seconds=0.01)

    def rows(*, is_alone: bool) -> int:
        """Returns the rows of the fiftieth step. A row takes two milliseconds; every request ends after a step."""
        queue.limit_bulk(BulkRoom(256, is_alone))
        admitted = []
        for number in range(50):
            for key in range(100):
                queue.add(request(1000 + 100 * number + key, BULK))
            admitted = queue.admit(BULK)
            queue.note_encoding(BULK, 0.0001 * len(admitted), 8 * len(admitted))
            queue.note_step(BULK, 0.002 * len(admitted), len(admitted))
            queue.end_round(BULK, 0.01)
            for key in range(100):
                queue.remove(1000 + 100 * number + key)
        return len(admitted)

    assert rows(is_alone=False) == 5
    assert rows(is_alone=True) == 40, "eight times as long"
    assert rows(is_alone=False) == 5


def test_a_bulk_request_wider_than_the_budget_is_still_admitted() -> None:
    queue = scheduler(max_rows=16, bulk_seconds=1e-6)
    queue.note_step(BULK, 1.0, 8)
    queue.add(request(0, BULK, rows=16))
    assert keys(queue.admit(BULK)) == [0]


@pytest.mark.parametrize(("num_heavy", "num_light"), [(1, 1), (3, 1), (1, 4)])
def test_heavy_clients_have_their_share_of_the_time(num_heavy: int, num_light: int) -> None:
    queue = scheduler(max_rows=16)
    for number in range(num_heavy):
        queue.add(request(number, HEAVY, client=f"heavy {number}"))
    for number in range(num_light):
        queue.add(request(100 + number, client=f"light {number}"))
    seconds = dict.fromkeys(Priority, 0.0)
    for _ in range(400):
        turn = queue.next_priority()
        queue.admit(turn)
        took = 2.0 if turn is HEAVY else 1.0
        seconds[turn] += took
        queue.end_round(turn, took)
    assert seconds[HEAVY] / sum(seconds.values()) == pytest.approx(num_heavy / (num_heavy + num_light), abs=0.02)


def test_bulk_work_gets_a_tenth_of_the_time_alongside_both_others() -> None:
    queue = scheduler(max_rows=16)
    for key, priority in enumerate(Priority):
        queue.add(request(key, priority, client=str(key)))
    seconds = dict.fromkeys(Priority, 0.0)
    for _ in range(1000):
        turn = queue.next_priority()
        seconds[turn] += 1.0
        queue.end_round(turn, 1.0)
    assert seconds[BULK] == pytest.approx(100, abs=2)
    assert seconds[HEAVY] == pytest.approx(seconds[INTERACTIVE], abs=3)


def test_calls_for_heavy_requests_are_limited_too() -> None:
    queue = scheduler(max_rows=256, bulk_seconds=0.01)
    queue.note_step(HEAVY, HEAVY_PART * 0.01, 8)
    for key in range(20):
        queue.add(request(key, HEAVY))
    assert len(queue.admit(HEAVY)) == 8
    queue.add(request(99, INTERACTIVE, rows=256))
    assert keys(queue.admit(INTERACTIVE)) == [99]


@pytest.mark.parametrize("priority", Priority)
def test_waiting_requests_that_will_be_late_are_dropped(priority: Priority) -> None:
    queue = scheduler(max_rows=2)
    for key, start_by in enumerate((1.0, 9.0, 3.0, 4.0, None)):
        queue.add(request(key, priority, start_by=start_by))
    assert keys(queue.admit(priority)) == [0, 1]
    assert queue.missed(2.9) == []
    assert queue.missed(4.0) == [2, 3], "and not 0, which runs"
    assert queue.missed(4.0) == []


@pytest.mark.parametrize("priority", Priority)
def test_deadlines_pass_for_the_waiting_and_the_running(priority: Priority) -> None:
    queue = scheduler(max_rows=2)
    for key, deadline in enumerate((5.0, None, 3.0, 4.0)):
        queue.add(request(key, priority, deadline=deadline))
    queue.admit(priority)
    assert queue.expired(2.9) == []
    assert queue.expired(4.0) == [2, 3]
    queue.remove(0)
    assert queue.expired(9.0) == [], "it had ended before"


def test_deadlines_of_removed_requests_do_not_accumulate() -> None:
    queue = scheduler()
    queue.add(request(-1, deadline=5000.0))
    for key in range(5000):
        queue.add(request(key, deadline=10_000.0 - key))
        queue.remove(key)
    assert len(queue._deadlines._heap) < 100
    assert queue.expired(5000.0) == [-1]


def queue_of(*requests: EngineRequest) -> PriorityQueue:
    queue = PriorityQueue()
    for request in requests:
        queue.add(request)
    return queue


def test_requests_nearest_in_length_join_the_oldest() -> None:
    queue = queue_of(*(request(key, length=length) for key, length in enumerate((20, 60, 4, 22, 90, 17))))
    assert keys(queue.admit(3, 1000)) == [0, 3, 5], "all three are padded to 24"
    for key in (0, 3, 5):
        queue.remove(key)
    assert keys(queue.admit(3, 1000)) == [1, 4, 2], "now the request that has waited longest determines the length"


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(8, 200), st.integers(8, 100))
def test_budgets_hold_under_random_traffic(seed: int, max_rows: int, positions: int, joining: int) -> None:
    rng = random.Random(seed)
    queue, waiting, running = PriorityQueue(), list[EngineRequest](), list[EngineRequest]()
    for key in range(80):
        action = rng.random()
        if action < 0.5:
            waiting.append(request(key, rows=rng.randint(1, max_rows), length=rng.randint(1, 40)))
            queue.add(waiting[-1])
        elif action < 0.7 and (waiting or running):
            gone = rng.choice([*waiting, *running])
            assert queue.remove(gone.key) is gone
            waiting, running = ([other for other in those if other is not gone] for those in (waiting, running))
        else:
            admitted = queue.admit(max_rows, positions, joining)
            if waiting and not running:
                assert admitted, "something always goes on"
            if admitted:
                assert admitted[0] is waiting[0], "the request that has waited longest goes first"
            running += admitted
            waiting = [other for other in waiting if other not in admitted]
            widest = max(map(width_of, running), default=0)
            assert len(running) == 1 or widest * len(running) <= positions or not admitted
            assert len(admitted) <= 1 or len(admitted) * max(map(width_of, admitted)) <= joining
        assert queue.reserved_rows == sum(held.max_rows for held in running) <= max_rows
        assert (len(queue.waiting), len(queue.running)) == (len(waiting), len(running))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 6))
def test_no_request_starves_behind_better_fitting_ones(seed: int, room: int) -> None:
    """Requests of the favoured length keep arriving, but only a bounded number of them overtakes."""
    rng = random.Random(seed)
    queue = PriorityQueue()
    arrivals, order = 0, list[int]()
    for _ in range(400):
        for _ in range(rng.randint(0, room + 1)):
            queue.add(request(arrivals, length=rng.choice((4, 4, 4, 20, 90))))
            arrivals += 1
        for admitted in queue.admit(room, 10**6):
            order.append(admitted.key)
            queue.remove(admitted.key)
    for place, key in enumerate(order):
        later_ones = sum(other > key for other in order[:place])
        assert later_ones <= MAX_OVERTAKEN + WINDOW
    unanswered = set(range(arrivals)) - set(order)
    assert not unanswered or min(unanswered) > arrivals - len(unanswered) - MAX_OVERTAKEN - WINDOW


def test_uncontended_time_is_neither_credited_nor_charged() -> None:
    fair_share = FairShare()
    for _ in range(100):
        fair_share.note(1.0, first=True, contended=False, share=0.5)
    assert not fair_share.is_turn()
    for _ in range(100):
        fair_share.note(1.0, first=False, contended=False, share=0.5)
    fair_share.note(1.0, first=True, contended=True, share=0.5)
    assert fair_share.is_turn(), "uncontended time is not charged"
