"""Tests of the dispatcher on plain values: fair queues, the worker of each request, and versions' shares of rows."""

import random
from collections import Counter
from functools import partial
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attendant.server.engine.dispatch import ALONE_SECONDS, BULK_AHEAD, Dispatcher, FairQueue, SharedRows
from attendant.server.engine.messages import EngineRequest, Priority
from tests.unit.server.engine.test_scheduler import BULK, HEAVY, INTERACTIVE, request


class Desk(Dispatcher):
    """A dispatcher that records the requests that it sends, and their workers."""

    def __init__(self, num_workers: int, max_rows: int) -> None:
        self.sent: list[tuple[int, EngineRequest]] = []
        super().__init__(num_workers, max_rows, lambda worker, sent: self.sent.append((worker, sent)))

    def news(self) -> list[tuple[int, int]]:
        news, self.sent = [(worker, sent.key) for worker, sent in self.sent], []
        return news

    def added(self, request: EngineRequest) -> list[tuple[int, int]]:
        self.add(request)
        return self.news()

    def after_end(self, worker: int, *requests: EngineRequest) -> list[tuple[int, int]]:
        self.ended(worker, requests)
        return self.news()


def desk_of(num_workers: int, max_rows: int) -> Desk:
    """Returns a desk with open workers."""
    desk = Desk(num_workers, max_rows)
    for worker in range(num_workers):
        desk.open(worker)
    assert desk.news() == []
    return desk


def test_a_request_goes_to_the_worker_with_fewest_rows_of_its_priority() -> None:
    desk = desk_of(2, max_rows=8)
    assert desk.added(request(0, rows=4)) == [(0, 0)]
    assert desk.added(request(1, rows=1)) == [(1, 1)]
    assert desk.added(request(2, rows=1)) == [(1, 2)]
    assert desk.added(request(3, BULK, rows=2)) == [(0, 3)], "bulk rows stand still for interactive ones"
    assert desk.added(request(4, BULK)) == [(1, 4)]


def ask(desk: Desk, *keys: int, steps: float, rows: int = 1) -> list[int]:
    """Adds requests with this expected number of steps; returns the workers that get them."""
    for key in keys:
        desk.add(request(key, rows=rows)._replace(expected_steps=steps))
    return [worker for worker, _ in desk.news()]


def test_short_requests_keep_away_from_long_ones() -> None:
    desk = desk_of(2, max_rows=100)
    assert ask(desk, *range(20), steps=10) == [0, 1] * 10, "equally long ones are divided evenly"
    assert ask(desk, 20, steps=100) == [0]
    assert ask(desk, 21, 22, 23, 24, steps=10) == [1, 1, 1, 0], "until the other one has three rows more"
    assert ask(desk, 25, steps=100) == [0], "it has the fewest rows"
    desk.ended(0, [request(20), request(25)])
    assert desk.news() == []
    assert ask(desk, 26, 27, 28, steps=10) == [0, 0, 0], "and has none to keep away from"


def test_short_requests_join_long_ones_if_no_other_worker_has_room() -> None:
    desk = desk_of(2, max_rows=4)
    ask(desk, *range(6), steps=10)
    assert ask(desk, 6, steps=100) == [0]
    assert ask(desk, 7, steps=10) == [1]
    assert ask(desk, 8, steps=10) == [], "both are full"
    assert desk.after_end(0, request(0)) == [(0, 8)]


def test_requests_of_a_closed_worker_no_longer_count() -> None:
    desk = desk_of(2, max_rows=100)
    ask(desk, *range(20), steps=10)
    assert ask(desk, 20, steps=100) == [0]
    desk.close(0)
    desk.open(0)
    assert ask(desk, *range(21, 31), steps=10) == [0] * 10


def test_bulk_requests_are_sent_ahead_up_to_a_limit() -> None:
    desk = desk_of(2, max_rows=4)
    assert len([sent for key in range(20) for sent in desk.added(request(key, BULK))]) == 2 * 4 * BULK_AHEAD
    assert desk.num_waiting(BULK) == 4
    assert desk.after_end(1, request(1, BULK)) == [(1, 16)]


def test_only_waiting_requests_are_cancelled_at_the_desk() -> None:
    desk = desk_of(2, max_rows=1)
    for key in range(3):
        desk.add(request(key))
    desk.news()
    assert not desk.cancel(1), "a worker has it"
    assert desk.cancel(2) and desk.num_waiting(INTERACTIVE) == 0
    assert not desk.cancel(2)
    assert desk.after_end(1, request(1)) == []


def test_a_closed_workers_requests_are_sent_first_to_others() -> None:
    desk = desk_of(2, max_rows=1)
    for key in range(3):
        desk.add(request(key))
    desk.news()
    desk.close(0, [request(0)])
    assert desk.is_open and desk.news() == []
    assert desk.added(request(3, BULK)) == [(1, 3)]
    assert desk.after_end(1, request(1)) == [(1, 0)], "before those that came later"
    desk.open(0)
    assert desk.news() == [(0, 2)], "with all its rows"


def test_without_workers_everything_waits_in_order() -> None:
    desk = desk_of(1, max_rows=8)
    desk.close(0)
    assert not desk.is_open
    for key in range(2, 6):
        assert desk.added(request(key, BULK if key % 2 else INTERACTIVE)) == []
    desk.close(0, [request(1, BULK), request(0)])
    assert (desk.num_waiting(INTERACTIVE), desk.num_waiting(BULK)) == (3, 3)
    desk.open(0)
    assert desk.news() == [(0, key) for key in (0, 2, 4, 1, 3, 5)]


def test_requests_that_would_come_too_late_are_removed() -> None:
    desk = desk_of(1, max_rows=1)
    for key, start_by in enumerate((1.0, 2.0, 5.0)):
        desk.add(request(key, start_by=start_by))
    desk.news()
    assert [missed.key for missed in desk.missed(3.0)] == [1], "a worker has 0"
    assert desk.after_end(0, request(0)) == [(0, 2)]


def test_waiting_interactive_and_heavy_requests_are_counted_together() -> None:
    desk = Desk(1, max_rows=4)
    for key, priority in enumerate((INTERACTIVE, HEAVY, HEAVY, BULK)):
        desk.add(request(key, priority, client="flood"))
    for priority in (INTERACTIVE, HEAVY):
        assert desk.ahead(priority, "flood", 3.0).num_own == 3
        assert desk.ahead(priority, "other", 3.0).num_own == 0


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 8))
def test_row_limits_hold_and_all_requests_are_served_in_order(seed: int, num_workers: int, max_rows: int) -> None:
    rng = random.Random(seed)
    desk = desk_of(num_workers, max_rows)
    running: dict[int, tuple[int, EngineRequest]] = {}
    order: dict[Priority, list[int]] = {priority: [] for priority in Priority}

    def note() -> None:
        for worker, sent in desk.sent:
            running[sent.key] = worker, sent
            order[sent.priority].append(sent.key)
        desk.sent.clear()
        for worker, priority in product(range(num_workers), Priority):
            mine = (held for at, held in running.values() if at == worker and held.priority is priority)
            assert sum(held.max_rows for held in mine) <= max_rows * (BULK_AHEAD if priority is BULK else 1)

    def end(key: int) -> None:
        worker, gone = running.pop(key)
        desk.ended(worker, [gone])
        note()

    for key in range(100):
        desk.add(request(key, rng.choice(list(Priority)), rows=rng.randint(1, max_rows)))
        note()
        while running and rng.random() < 0.5:
            end(rng.choice(list(running)))
    while running:
        end(min(running))
    assert sum(map(len, order.values())) == 100
    assert all(keys == sorted(keys) for keys in order.values())


class Versions:
    """Versions of a server, with an open worker each.

    Attributes:
        running: for each version, the requests of its worker, by key.
        with_bulk: for each version, the limits sent to its worker: the number of versions that have bulk requests, and
            whether bulk work is alone.
    """

    def __init__(self, number: int, max_rows: int) -> None:
        self.shared = SharedRows(max_rows)
        self.running: list[dict[int, EngineRequest]] = [{} for _ in range(number)]
        self.with_bulk: list[list[tuple[int, bool]]] = [[] for _ in range(number)]
        self.desks = [
            Dispatcher(1, max_rows, partial(self._sent, version), self.shared, partial(self._limited, version))
            for version in range(number)
        ]
        for desk in self.desks:
            desk.open(0)

    def _sent(self, version: int, worker: int, sent: EngineRequest) -> None:
        self.running[version][sent.key] = sent

    def _limited(self, version: int, number: int, is_alone: bool) -> None:
        self.with_bulk[version].append((number, is_alone))

    def ask(
        self, version: int, *keys: int, rows: int = 1, priority: Priority = INTERACTIVE, submitted: float = 0.0
    ) -> None:
        for key in keys:
            self.desks[version].add(request(key, priority, rows=rows)._replace(submitted=submitted))

    def end(self, version: int, key: int) -> None:
        self.desks[version].ended(0, [self.running[version].pop(key)])

    def held(self, version: int, priority: Priority = INTERACTIVE) -> int:
        return sum(held.max_rows for held in self.running[version].values() if held.priority is priority)


def test_a_version_alone_may_have_all_rows_and_others_wait() -> None:
    versions = Versions(2, max_rows=4)
    versions.ask(0, *range(6))
    versions.ask(1, 10)
    assert (versions.held(0), versions.held(1)) == (4, 0)
    versions.end(0, 0)
    assert (versions.held(0), versions.held(1)) == (3, 1), "free rows go to the version that holds the fewest"
    versions.end(1, 10)
    assert (versions.held(0), versions.held(1)) == (4, 0), "and gives it back when it ends"


def test_versions_in_need_converge_to_equal_numbers_of_rows() -> None:
    versions = Versions(3, max_rows=12)
    for version in range(3):
        versions.ask(version, *range(100 * version, 100 * version + 50))
    for _ in range(12):
        most = max(range(3), key=versions.held)
        versions.end(most, min(versions.running[most]))
    assert [versions.held(version) for version in range(3)] == [4, 4, 4]
    # The shares stay equal when requests of one version end faster.
    for _ in range(30):
        versions.end(1, min(versions.running[1]))
    assert [versions.held(version) for version in range(3)] == [4, 4, 4]


def test_a_wide_request_is_not_passed_by_small_ones_of_others() -> None:
    versions = Versions(2, max_rows=4)
    versions.ask(0, *range(20))
    versions.ask(1, 100, rows=4)
    for key in range(3):
        versions.end(0, key)
        assert versions.held(1) == 0
    versions.end(0, 3)
    assert (versions.held(0), versions.held(1)) == (0, 4)


def test_a_cancelled_request_keeps_no_version_waiting() -> None:
    versions = Versions(2, max_rows=4)
    versions.ask(0, *range(8))
    versions.ask(1, 100, rows=4)
    assert versions.desks[1].cancel(100)
    versions.end(0, 0)
    assert versions.held(0) == 4


def test_rows_of_a_version_that_ends_go_to_others() -> None:
    versions = Versions(2, max_rows=4)
    versions.ask(0, *range(8))
    versions.ask(1, *range(10, 18))
    versions.desks[0].clear()
    assert versions.held(1) == 4


def test_bulk_rows_are_divided_among_the_versions_that_have_any() -> None:
    versions = Versions(2, max_rows=4)
    versions.ask(0, *range(20), priority=BULK)
    versions.ask(0, *range(20, 30))
    assert (versions.held(0, BULK), versions.held(0)) == (4 * BULK_AHEAD, 4), "workers choose among them"
    assert versions.with_bulk == [[(1, False)], []]
    versions.ask(1, 40, 41, priority=BULK)
    versions.end(1, 40)
    assert versions.with_bulk == [[(1, False), (2, False)], [(2, False)]]
    versions.end(1, 41)
    assert versions.with_bulk == [[(1, False), (2, False), (1, False)], [(2, False)]]
    versions.ask(1, 42, priority=BULK)
    versions.desks[0].clear()
    assert [[number for number, _ in limits] for limits in versions.with_bulk] == [[1, 2, 1, 2], [2, 2, 1]]
    assert not any(is_alone for limits in versions.with_bulk for _, is_alone in limits)


def test_bulk_is_alone_some_time_after_the_last_other_answer_of_any_version() -> None:
    versions = Versions(2, max_rows=4)
    shared, limits = versions.shared, versions.with_bulk[0]
    versions.ask(0, 0, 1, priority=BULK)
    versions.ask(1, 10, submitted=5.0)
    shared.tick(5.0 + 2 * ALONE_SECONDS)
    assert limits == [(1, False)], "somebody waits for an answer"
    versions.end(1, 10)
    shared.tick(5.0 + ALONE_SECONDS / 2)
    assert limits == [(1, False)], "it may be asked again"
    shared.tick(5.0 + ALONE_SECONDS)
    assert limits == [(1, False), (1, True)]
    shared.tick(9.0)
    assert len(limits) == 2, "that is known"
    versions.ask(1, 11, submitted=9.0)
    assert limits == [(1, False), (1, True), (1, False)], "at once, wherever it was asked"
    versions.ask(1, 12, 13, submitted=9.1)
    assert len(limits) == 3
    versions.ask(1, 14, priority=BULK, submitted=9.2)
    assert limits[-1] == versions.with_bulk[1][-1] == (2, False)


def test_bulk_work_that_comes_to_an_idle_server_is_alone() -> None:
    versions = Versions(1, max_rows=4)
    versions.shared.tick(0.0)
    versions.ask(0, 0, priority=BULK)
    assert versions.with_bulk == [[(1, True)]]


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 8))
def test_the_row_budget_holds_and_all_requests_are_served(seed: int, number: int, max_rows: int) -> None:
    rng = random.Random(seed)
    versions = Versions(number, max_rows)
    wanted = 0

    def check() -> None:
        for priority in Priority:
            total = sum(versions.held(version, priority) for version in range(number))
            assert total <= max_rows or priority is BULK

    def end_one() -> None:
        version = rng.choice([version for version in range(number) if versions.running[version]])
        versions.end(version, rng.choice(list(versions.running[version])))
        check()

    for key in range(100):
        wanted += 1
        version = rng.randrange(number)
        versions.ask(version, key, rows=rng.randint(1, max_rows), priority=rng.choice(list(Priority)))
        check()
        if rng.random() < 0.1 and versions.desks[version].cancel(key):
            wanted -= 1
        while any(versions.running) and rng.random() < 0.4:
            end_one()
            wanted -= 1
    while any(versions.running):
        end_one()
        wanted -= 1
    assert wanted == 0


def queued(key: int, client: str = "", rows: int = 1, steps: float = 1.0) -> EngineRequest:
    return request(key, rows=rows, client=client)._replace(expected_steps=steps)


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


def test_a_small_client_waits_for_one_turn_of_a_flood() -> None:
    queue = queue_of(*(queued(key, "flood", rows=32, steps=10) for key in range(50)))
    take(queue)
    queue.add(queued(99, "other"))
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
                queue.add(queued(key, client, rows, steps))
                key += 1
        taken = take(queue)
        done[taken.client] += taken.work
    assert max(done.values()) - min(done.values()) <= 4 * largest


def test_a_client_is_not_charged_for_time_alone() -> None:
    queue = queue_of(*(queued(key, "a", rows=4) for key in range(100)))
    for _ in range(90):
        take(queue)
    for key in range(4):
        queue.add(queued(200 + key, "b", rows=4))
    assert Counter(take(queue).client for _ in range(8)) == {"a": 4, "b": 4}


@pytest.mark.parametrize("key", [0, 1, 2])
def test_a_removed_request_no_longer_counts(key: int) -> None:
    queue = queue_of(queued(0, "a", rows=2), queued(1, "a", rows=3), queued(2, "b", rows=4))
    removed = queue.remove(key)
    assert removed is not None and removed.key == key
    assert queue.remove(key) is None
    assert (len(queue), queue.work) == (2, 9 - removed.work)


def test_work_ahead_counts_a_fair_share_of_other_clients() -> None:
    queue = queue_of(*(queued(key, "flood", rows=10) for key in range(10)), queued(20, "other", rows=3))
    assert queue.ahead("flood", 10) == (103, 11, 10), "all of its own, and all of the other's"
    assert queue.ahead("other", 2) == (3 + 5, 1.5, 1), "its own, and as much of the flood's"
    assert queue.ahead("new", 4) == (4 + 3, 1.4, 0)


def test_requests_that_are_put_back_are_the_next_of_their_clients() -> None:
    queue = queue_of(*(queued(key, "a") for key in range(4)), *(queued(10 + key, "b") for key in range(4)))
    taken = [take(queue) for _ in range(4)]
    queue.add(queued(4, "a"))
    for unfinished in reversed(taken):
        queue.put_back(unfinished)
    again = [take(queue).key for _ in range(9)]
    assert [key for key in again if key < 10] == [0, 1, 2, 3, 4]
    assert [key for key in again if key >= 10] == [10, 11, 12, 13] and queue.work == 0
