"""Tests of the fair queue: clients that always have waiting requests get equal amounts of work."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attendant.runtime.decoding.options import DecodingOptions
from attendant.server.engine.dispatch import FairQueue
from attendant.server.engine.messages import EngineRequest


def request(
    key: int, client: str = "", rows: int = 1, steps: float = 1.0, start_by: float | None = None
) -> EngineRequest:
    options = DecodingOptions(max_length=5, beam_size=rows)
    return EngineRequest(key, (5,), options, 0.0, client=client, expected_steps=steps, start_by=start_by)


def queue_of(*requests: EngineRequest) -> FairQueue:
    queue = FairQueue()
    for waiting in requests:
        queue.add(waiting)
    return queue


def take(queue: FairQueue) -> EngineRequest:
    first = queue.first()
    assert first is not None
    queue.take(first)
    return first


def test_one_client_is_served_in_order() -> None:
    queue = queue_of(*(request(key, rows=1 + key % 5) for key in range(9)))
    assert [take(queue).key for _ in range(9)] == list(range(9))
    assert queue.first() is None and len(queue) == 0 and queue.work == 0


def test_a_small_client_waits_for_one_turn_of_a_flood() -> None:
    queue = queue_of(*(request(key, "flood", rows=32, steps=10) for key in range(50)))
    take(queue)
    queue.add(request(99, "other"))
    assert 99 in [take(queue).key for _ in range(2)]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 6))
def test_work_is_shared_evenly(seed: int, num_clients: int) -> None:
    rng = random.Random(seed)
    kinds = {str(number): (rng.randint(1, 32), rng.uniform(1, 40)) for number in range(num_clients)}
    queue, key = FairQueue(), 0
    done: Counter[str] = Counter()
    largest = max(rows * steps for rows, steps in kinds.values())
    while done.total() < 200 * largest:
        for client, (rows, steps) in kinds.items():
            # Client n always has n + 2 requests waiting.
            while queue.num_of(client) < 2 + int(client):
                queue.add(request(key, client, rows, steps))
                key += 1
        taken = take(queue)
        done[taken.client] += taken.work
    assert max(done.values()) - min(done.values()) <= 4 * largest


def test_a_client_is_not_charged_for_time_alone() -> None:
    queue = queue_of(*(request(key, "a", rows=4) for key in range(100)))
    for _ in range(90):
        take(queue)
    for key in range(4):
        queue.add(request(200 + key, "b", rows=4))
    assert Counter(take(queue).client for _ in range(8)) == {"a": 4, "b": 4}


@pytest.mark.parametrize("key", [0, 1, 2])
def test_a_removed_request_no_longer_counts(key: int) -> None:
    queue = queue_of(request(0, "a", rows=2), request(1, "a", rows=3), request(2, "b", rows=4))
    removed = queue.remove(key)
    assert removed is not None and removed.key == key
    assert queue.remove(key) is None
    assert (len(queue), queue.work) == (2, 9 - removed.work)


def test_work_ahead_counts_a_fair_share_of_other_clients() -> None:
    queue = queue_of(*(request(key, "flood", rows=10) for key in range(10)), request(20, "other", rows=3))
    assert queue.ahead("flood", 10) == (103, 11, 10), "all of its own, and all of the other's"
    assert queue.ahead("other", 2) == (3 + 5, 1.5, 1), "its own, and as much of the flood's"
    assert queue.ahead("new", 4) == (4 + 3, 1.4, 0)


def test_requests_that_are_put_back_are_the_next_of_their_clients() -> None:
    queue = queue_of(*(request(key, "a") for key in range(4)), *(request(10 + key, "b") for key in range(4)))
    taken = [take(queue) for _ in range(4)]
    queue.add(request(4, "a"))
    for unfinished in reversed(taken):
        queue.put_back(unfinished)
    again = [take(queue).key for _ in range(9)]
    assert [key for key in again if key < 10] == [0, 1, 2, 3, 4]
    assert [key for key in again if key >= 10] == [10, 11, 12, 13] and queue.work == 0
