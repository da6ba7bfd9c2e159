"""Turns: whatever clients ask for, those that always want something get the same work done."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attendant.runtime.decoding.options import DecodingOptions
from attendant.server.engine.queue import FairQueue
from attendant.server.engine.request import EngineRequest


def request(
    key: int, client: str = "", rows: int = 1, steps: float = 1.0, start_by: float | None = None
) -> EngineRequest:
    options = DecodingOptions(max_length=5, beam_size=rows)
    return EngineRequest(key, (5,), options, 0.0, client=client, expected_steps=steps, start_by=start_by)


def queue_of(*requests: EngineRequest) -> FairQueue:
    queue = FairQueue()
    for one in requests:
        queue.add(one)
    return queue


def take(queue: FairQueue) -> EngineRequest:
    first = queue.first()
    assert first is not None
    return queue.take(first.key)


def test_one_client_is_served_in_order() -> None:
    queue = queue_of(*(request(key, rows=1 + key % 5) for key in range(9)))
    assert [one.key for one, _ in queue.in_order()] == list(range(9))
    assert [take(queue).key for _ in range(9)] == list(range(9))
    assert queue.first() is None and len(queue) == 0 and queue.work == 0 and queue.clients == []


def test_a_small_client_waits_for_one_turn_of_a_flood() -> None:
    queue = queue_of(*(request(key, "flood", rows=32, steps=10) for key in range(50)))
    take(queue)
    queue.add(request(99, "other"))
    assert 99 in [take(queue).key for _ in range(2)]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 6))
def test_work_is_shared_evenly_whatever_is_asked_for(seed: int, num_clients: int) -> None:
    rng = random.Random(seed)
    kinds = {str(number): (rng.randint(1, 32), rng.uniform(1, 40)) for number in range(num_clients)}
    queue, key = FairQueue(), 0
    done: Counter[str] = Counter()
    largest = max(rows * steps for rows, steps in kinds.values())
    while done.total() < 200 * largest:
        for client, (rows, steps) in kinds.items():
            # One has many waiting, another few, but always some.
            while sum(queue._client_of[one] == client for one in list(queue._client_of)) < 2 + int(client):
                queue.add(request(key, client, rows, steps))
                key += 1
        taken = take(queue)
        done[taken.client] += taken.work
    assert max(done.values()) - min(done.values()) <= 4 * largest


def test_what_is_foreseen_is_what_happens() -> None:
    rng = random.Random(3)
    queue = FairQueue()
    for key in range(60):
        queue.add(request(key, rng.choice("abc"), rows=4))
    foreseen = [one.key for one, _ in queue.in_order()]
    assert [take(queue).key for _ in range(60)] == foreseen


def test_whoever_is_taken_out_of_turn_pays_for_it() -> None:
    queue = queue_of(*(request(key, "a") for key in range(4)), *(request(10 + key, "b") for key in range(4)))
    queue.take(0)
    queue.take(2)
    queue.take(3)
    assert [take(queue).key for _ in range(3)] == [10, 11, 12]
    assert [(one.key, passed) for one, passed in queue.in_order()] in ([(13, 0), (1, 2)], [(1, 2), (13, 0)])


def test_time_alone_is_not_owed() -> None:
    queue = queue_of(*(request(key, "a", rows=4) for key in range(100)))
    for _ in range(90):
        take(queue)
    for key in range(4):
        queue.add(request(200 + key, "b", rows=4))
    assert Counter(take(queue).client for _ in range(8)) == {"a": 4, "b": 4}


@pytest.mark.parametrize("key", [0, 1, 2])
def test_removing(key: int) -> None:
    queue = queue_of(request(0, "a", rows=2), request(1, "a", rows=3), request(2, "b", rows=4))
    removed = queue.remove(key)
    assert removed is not None and removed.key == key and key not in queue
    assert queue.remove(key) is None
    assert (len(queue), queue.work) == (2, 9 - removed.work)


def test_what_is_ahead() -> None:
    queue = queue_of(*(request(key, "flood", rows=10) for key in range(10)), request(20, "other", rows=3))
    assert queue.ahead("flood", 10) == (103, 11, 10), "all of its own, and all of the other's"
    assert queue.ahead("other", 2) == (3 + 5, 1.5, 1), "its own, and as much of the flood's"
    assert queue.ahead("new", 4) == (4 + 3, 1.4, 0)


def test_what_is_put_back_is_the_next_of_its_client() -> None:
    queue = queue_of(*(request(key, "a") for key in range(4)), *(request(10 + key, "b") for key in range(4)))
    taken = [take(queue) for _ in range(4)]
    queue.add(request(4, "a"))
    for one in reversed(taken):
        queue.put_back(one)
    again = [take(queue).key for _ in range(9)]
    assert [key for key in again if key < 10] == [0, 1, 2, 3, 4]
    assert [key for key in again if key >= 10] == [10, 11, 12, 13] and queue.work == 0


def test_those_that_had_to_begin() -> None:
    queue = queue_of(*(request(key, start_by=start_by) for key, start_by in enumerate((3.0, 1.0, None, 2.0))))
    queue.remove(3)
    assert queue.missed(0.5) == []
    assert queue.missed(3.0) == [1, 0]
    assert queue.missed(9.0) == []
