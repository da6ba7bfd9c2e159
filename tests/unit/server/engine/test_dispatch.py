"""Who gets which request, on plain values."""

import random
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from attendant.runtime.decoding.options import DecodingOptions
from attendant.server.engine.pool import Dispatcher
from attendant.server.engine.request import EngineRequest, Priority
from tests.unit.server.engine.test_scheduler import BULK, HEAVY, INTERACTIVE, request


def given_to(sent: list[tuple[int, EngineRequest]]) -> list[tuple[int, int]]:
    return [(worker, one.key) for worker, one in sent]


def desk_of(num_workers: int, max_rows: int) -> Dispatcher:
    """All of whose workers are open."""
    desk = Dispatcher(num_workers, max_rows)
    for worker in range(num_workers):
        assert desk.open(worker) == []
    return desk


def test_the_worker_with_the_fewest_rows_of_its_like() -> None:
    desk = desk_of(2, max_rows=8)
    assert given_to(desk.add(request(0, rows=4))) == [(0, 0)]
    assert given_to(desk.add(request(1, rows=1))) == [(1, 1)]
    assert given_to(desk.add(request(2, rows=1))) == [(1, 2)]
    assert given_to(desk.add(request(3, BULK, rows=2))) == [(0, 3)], "bulk rows stand still for interactive ones"
    assert given_to(desk.add(request(4, BULK))) == [(1, 4)]


def ask(desk: Dispatcher, *keys: int, steps: float, rows: int = 1) -> list[int]:
    """Who gets requests that are expected to take so many steps."""
    sent = [desk.add(request(key, rows=rows)._replace(expected_steps=steps)) for key in keys]
    return [worker for given in sent for worker, _ in given]


def test_short_requests_keep_away_from_long_ones() -> None:
    desk = desk_of(2, max_rows=100)
    assert ask(desk, *range(20), steps=10) == [0, 1] * 10, "equally long ones are divided evenly"
    assert ask(desk, 20, steps=100) == [0]
    assert ask(desk, 21, 22, 23, 24, steps=10) == [1, 1, 1, 0], "until the other one has three rows more"
    assert ask(desk, 25, steps=100) == [0], "it has the fewest rows"
    desk.ended(0, [request(20), request(25)])
    assert ask(desk, 26, 27, 28, steps=10) == [0, 0, 0], "and has none to keep away from"


def test_long_requests_come_to_be_together() -> None:
    desk, rng = desk_of(2, max_rows=200), random.Random(5)
    workers: dict[int, int] = {}
    long_ones = set()
    for key in range(2000):
        is_long = rng.random() < 0.2
        (workers[key],) = ask(desk, key, steps=80 if is_long else 10)
        if is_long:
            long_ones.add(key)
        if len(workers) > 64:
            gone = rng.choice(list(workers))
            desk.ended(workers.pop(gone), [request(gone)])
    with_long = [sum(key in long_ones for key, worker in workers.items() if worker == one) for one in (0, 1)]
    rows = [list(workers.values()).count(one) for one in (0, 1)]
    assert min(with_long) <= max(with_long) / 4
    quiet = with_long.index(max(with_long))
    assert rows[quiet] < rows[1 - quiet]


def test_short_requests_go_to_long_ones_where_there_is_no_other_room() -> None:
    desk = desk_of(2, max_rows=4)
    ask(desk, *range(6), steps=10)
    assert ask(desk, 6, steps=100) == [0]
    assert ask(desk, 7, steps=10) == [1]
    assert ask(desk, 8, steps=10) == [], "both are full"
    assert given_to(desk.ended(0, [request(0)])) == [(0, 8)]


def test_what_a_closed_worker_had_counts_no_longer() -> None:
    desk = desk_of(2, max_rows=100)
    ask(desk, *range(20), steps=10)
    assert ask(desk, 20, steps=100) == [0]
    desk.close(0)
    desk.open(0)
    assert ask(desk, *range(21, 31), steps=10) == [0] * 10


def test_one_queue_for_all_and_whoever_has_room_takes_the_next() -> None:
    desk = desk_of(2, max_rows=1)
    for key in range(5):
        desk.add(request(key))
    assert desk.num_waiting(INTERACTIVE) == 3
    assert given_to(desk.ended(1, [request(1)])) == [(1, 2)]
    assert given_to(desk.ended(1, [request(2)])) == [(1, 3)]
    assert given_to(desk.ended(0, [request(0)])) == [(0, 4)]
    assert desk.num_waiting(INTERACTIVE) == 0


def test_a_small_request_does_not_overtake_a_large_one() -> None:
    desk = desk_of(1, max_rows=4)
    desk.add(request(0, rows=2))
    assert desk.add(request(1, rows=4)) == desk.add(request(2, rows=1)) == []
    assert given_to(desk.ended(0, [request(0, rows=2)])) == [(0, 1)]
    assert given_to(desk.ended(0, [request(1, rows=4)])) == [(0, 2)]


def test_cancelling() -> None:
    desk = desk_of(2, max_rows=1)
    for key in range(3):
        desk.add(request(key))
    assert not desk.cancel(1), "a worker has it"
    assert desk.cancel(2) and desk.num_waiting(INTERACTIVE) == 0
    assert not desk.cancel(2)
    assert desk.ended(1, [request(1)]) == []


def test_a_closed_worker_is_given_nothing() -> None:
    desk = desk_of(2, max_rows=1)
    desk.add(request(0)), desk.add(request(1)), desk.add(request(2))
    desk.close(0)
    assert desk.is_open
    assert desk.take_back([request(0)]) == []
    assert given_to(desk.add(request(3, BULK))) == [(1, 3)]
    assert given_to(desk.ended(1, [request(1)])) == [(1, 0)], "before those that came later"
    assert given_to(desk.open(0)) == [(0, 2)], "with all its rows"


def test_without_workers_everything_waits_in_order() -> None:
    desk = desk_of(1, max_rows=8)
    desk.close(0)
    assert not desk.is_open
    for key in range(2, 6):
        assert desk.add(request(key, BULK if key % 2 else INTERACTIVE)) == []
    assert desk.take_back([request(1, BULK), request(0)]) == []
    assert (desk.num_waiting(INTERACTIVE), desk.num_waiting(BULK)) == (3, 3)
    assert given_to(desk.open(0)) == [(0, key) for key in (0, 2, 4, 1, 3, 5)]


def test_clients_take_turns() -> None:
    desk = desk_of(1, max_rows=1)
    for key in range(6):
        desk.add(request(key, client="flood"))
    desk.add(request(6, client="other"))
    order, running = [], 0
    for _ in range(5):
        ((_, sent),) = desk.ended(0, [request(running)])
        running = sent.key
        order.append(running)
    assert order.index(6) <= 1


def test_what_comes_too_late_is_taken_out() -> None:
    desk = desk_of(1, max_rows=1)
    for key, start_by in enumerate((1.0, 2.0, 5.0)):
        desk.add(request(key, start_by=start_by))
    assert [one.key for one in desk.missed(3.0)] == [1], "0 has been given to a worker"
    assert given_to(desk.ended(0, [request(0)])) == [(0, 2)]


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 8))
def test_rows_hold_and_everybody_is_served_in_order(seed: int, num_workers: int, max_rows: int) -> None:
    rng = random.Random(seed)
    desk = desk_of(num_workers, max_rows)
    running: dict[int, tuple[int, EngineRequest]] = {}
    order: dict[Priority, list[int]] = {INTERACTIVE: [], HEAVY: []}

    def note(sent: list[tuple[int, EngineRequest]]) -> None:
        for worker, one in sent:
            running[one.key] = worker, one
            if one.priority is not BULK:
                order[one.priority].append(one.key)
        for worker, priority in product(range(num_workers), (INTERACTIVE, HEAVY)):
            mine = (one for at, one in running.values() if at == worker and one.priority is priority)
            assert sum(one.max_rows for one in mine) <= max_rows

    def end(key: int) -> None:
        worker, gone = running.pop(key)
        note(desk.ended(worker, [gone]))

    for key in range(100):
        note(desk.add(request(key, rng.choice(list(Priority)), rows=rng.randint(1, max_rows))))
        while running and rng.random() < 0.5:
            end(rng.choice(list(running)))
    while running:
        end(min(running))
    assert all(keys == sorted(keys) for keys in order.values()) and desk.num_waiting(INTERACTIVE) == 0


def test_what_a_client_has_waiting_counts_whatever_its_priority() -> None:
    dispatcher = Dispatcher(1, max_rows=4)
    for key, priority in enumerate((Priority.INTERACTIVE, Priority.HEAVY, Priority.HEAVY, Priority.BULK)):
        dispatcher.add(EngineRequest(key, (4,), DecodingOptions(max_length=3), 0.0, None, priority, "flood", 3.0))
    for priority in (Priority.INTERACTIVE, Priority.HEAVY):
        assert dispatcher.ahead(priority, "flood", 3.0).num_own == 3
        assert dispatcher.ahead(priority, "other", 3.0).num_own == 0
