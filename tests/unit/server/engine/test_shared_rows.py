"""Who gets the rows of a server, on plain values: a dispatcher for each version, all of whose workers are open."""

import random
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from attendant.server.engine.pool import Dispatcher
from attendant.server.engine.request import EngineRequest, Priority
from attendant.server.engine.shares import ALONE_SECONDS, SharedRows
from tests.unit.server.engine.test_scheduler import BULK, INTERACTIVE, request


class Versions:
    """Some versions of a server, with a worker each.

    Attributes:
        running: of each version, what its worker has, by key.
        with_bulk: of each version, what it was told of how many have bulk requests, and whether these are alone.
    """

    def __init__(self, number: int, max_rows: int) -> None:
        self.shared = SharedRows(max_rows)
        self.running: list[dict[int, EngineRequest]] = [{} for _ in range(number)]
        self.with_bulk: list[list[tuple[int, bool]]] = [[] for _ in range(number)]
        self.desks = [
            Dispatcher(1, max_rows, self.shared, self._asked(version), self._told(version)) for version in range(number)
        ]
        for desk in self.desks:
            assert desk.open(0) == []

    def _asked(self, version: int) -> Callable[[], None]:
        return lambda: self._note(version, self.desks[version].next())

    def _told(self, version: int) -> Callable[[int, bool], None]:
        return lambda number, is_alone: self.with_bulk[version].append((number, is_alone))

    def _note(self, version: int, sent: list[tuple[int, EngineRequest]]) -> None:
        self.running[version] |= {one.key: one for _, one in sent}

    def ask(
        self, version: int, *keys: int, rows: int = 1, priority: Priority = INTERACTIVE, submitted: float = 0.0
    ) -> None:
        for key in keys:
            one = request(key, priority, rows=rows)._replace(submitted=submitted)
            self._note(version, self.desks[version].add(one))

    def end(self, version: int, key: int) -> None:
        self._note(version, self.desks[version].ended(0, [self.running[version].pop(key)]))

    def held(self, version: int, priority: Priority = INTERACTIVE) -> int:
        return sum(one.max_rows for one in self.running[version].values() if one.priority is priority)


def test_whoever_is_alone_may_have_all_and_others_wait() -> None:
    versions = Versions(2, max_rows=4)
    versions.ask(0, *range(6))
    versions.ask(1, 10)
    assert (versions.held(0), versions.held(1)) == (4, 0)
    versions.end(0, 0)
    assert (versions.held(0), versions.held(1)) == (3, 1), "whoever holds fewest has what comes free"
    versions.end(1, 10)
    assert (versions.held(0), versions.held(1)) == (4, 0), "and gives it back when it ends"


def test_versions_that_want_more_than_there_is_come_to_have_equally_many() -> None:
    versions = Versions(3, max_rows=12)
    for version in range(3):
        versions.ask(version, *range(100 * version, 100 * version + 50))
    for _ in range(12):
        most = max(range(3), key=versions.held)
        versions.end(most, min(versions.running[most]))
    assert [versions.held(version) for version in range(3)] == [4, 4, 4]
    # However fast one of them is.
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


def test_who_waits_no_more_keeps_nobody_waiting() -> None:
    versions = Versions(2, max_rows=4)
    versions.ask(0, *range(8))
    versions.ask(1, 100, rows=4)
    assert versions.desks[1].cancel(100)
    versions.end(0, 0)
    assert versions.held(0) == 4


def test_what_a_version_leaves_behind_is_given_to_others() -> None:
    versions = Versions(2, max_rows=4)
    versions.ask(0, *range(8))
    versions.ask(1, *range(10, 18))
    versions.desks[0].clear()
    assert versions.held(1) == 4


def test_bulk_rows_are_divided_among_the_versions_that_have_any() -> None:
    versions = Versions(2, max_rows=4)
    versions.ask(0, *range(20), priority=BULK)
    versions.ask(0, *range(20, 30))
    assert (versions.held(0, BULK), versions.held(0)) == (20, 4), "workers choose among them"
    assert versions.with_bulk == [[(1, False)], []]
    versions.ask(1, 40, 41, priority=BULK)
    versions.end(1, 40)
    assert versions.with_bulk == [[(1, False), (2, False)], [(2, False)]]
    versions.end(1, 41)
    assert versions.with_bulk == [[(1, False), (2, False), (1, False)], [(2, False)]]
    versions.ask(1, 42, priority=BULK)
    versions.desks[0].clear()
    assert [[number for number, _ in told] for told in versions.with_bulk] == [[1, 2, 1, 2], [2, 2, 1]]
    assert not any(is_alone for told in versions.with_bulk for _, is_alone in told)


def test_bulk_work_is_alone_a_while_after_others_have_asked_any_version_and_been_answered() -> None:
    versions = Versions(2, max_rows=4)
    shared, told = versions.shared, versions.with_bulk[0]
    versions.ask(0, 0, 1, priority=BULK)
    versions.ask(1, 10, submitted=5.0)
    shared.look(5.0 + 2 * ALONE_SECONDS)
    assert told == [(1, False)], "somebody waits for an answer"
    versions.end(1, 10)
    shared.look(5.0 + ALONE_SECONDS / 2)
    assert told == [(1, False)], "it may be asked again"
    shared.look(5.0 + ALONE_SECONDS)
    assert told == [(1, False), (1, True)]
    shared.look(9.0)
    assert len(told) == 2, "that is known"
    versions.ask(1, 11, submitted=9.0)
    assert told == [(1, False), (1, True), (1, False)], "at once, wherever it was asked"
    versions.ask(1, 12, 13, submitted=9.1)
    assert len(told) == 3
    versions.ask(1, 14, priority=BULK, submitted=9.2)
    assert told[-1] == versions.with_bulk[1][-1] == (2, False)


def test_bulk_work_that_comes_to_an_idle_server_is_alone() -> None:
    versions = Versions(1, max_rows=4)
    versions.shared.look(0.0)
    versions.ask(0, 0, priority=BULK)
    assert versions.with_bulk == [[(1, True)]]


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 8))
def test_the_budget_holds_and_everybody_is_served(seed: int, number: int, max_rows: int) -> None:
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
