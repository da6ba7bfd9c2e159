"""Tests of supervision on plain values: suspected requests, restarts, and silent workers."""

import os
from types import SimpleNamespace
from typing import cast

from attendant.server.engine.messages import FlightRecord, new_record
from attendant.server.engine.pool import (
    MAX_DELAY_SECONDS,
    MAX_POISONED,
    RESTARTS_WINDOW_SECONDS,
    Poisoned,
    Quarantine,
    Restarts,
    RoundBound,
    Slot,
)
from attendant.server.engine.processes import WorkerProcess
from tests.unit.server.engine.test_scheduler import BULK, INTERACTIVE, request


def test_suspects_are_tried_one_at_a_time_interactive_ones_first() -> None:
    quarantine = Quarantine()
    quarantine.add([request(3, BULK), request(2), request(1, BULK), request(4)])
    assert (quarantine.num_waiting(INTERACTIVE), quarantine.num_waiting(BULK)) == (2, 2)
    assert quarantine.cancel(1) and not quarantine.cancel(1)
    tried = []
    while (suspect := quarantine.next()) is not None:
        tried.append(suspect.key)
        assert len(quarantine) == 4 - len(tried)
    assert tried == [2, 4, 3] and not quarantine


def test_the_same_request_of_any_client_is_poisoned() -> None:
    poisoned = Poisoned()
    assert request(1) not in poisoned
    poisoned.add(request(1, rows=2))
    assert request(7, BULK, rows=2) in poisoned and request(7, rows=1) not in poisoned
    for number in range(MAX_POISONED):
        poisoned.add(request(1)._replace(source_ids=(number,)))
    assert request(1, rows=2) not in poisoned


def test_restarts_are_delayed_increasingly_and_limited() -> None:
    restarts = Restarts(9)
    assert [restarts.delay(0.0) for _ in range(9)] == [0.0, 0.5, 1, 2, 4, 8, 16, MAX_DELAY_SECONDS, MAX_DELAY_SECONDS]
    assert restarts.delay(RESTARTS_WINDOW_SECONDS - 1) is None
    assert restarts.delay(RESTARTS_WINDOW_SECONDS) == 0.0, "what is long ago is forgotten"
    assert Restarts(0).delay(0.0) is None


def test_notes_are_read_through_another_mapping() -> None:
    descriptor = new_record(4)
    theirs, ours = FlightRecord(descriptor), FlightRecord(descriptor)
    os.close(descriptor)
    assert ours.read() == set()
    theirs.note([1, 2**40, 3, 4])
    assert ours.read() == {1, 2**40, 3, 4}
    theirs.note([5])
    assert ours.read() == {5}


def test_time_without_reading_is_not_counted_as_silence() -> None:
    slot = Slot(0, RoundBound(1.0), 0.5, lambda slot, report: None, lambda slot: None)
    assert slot.tick(60.0) == 0.0, "it has no work"
    slot.is_loading = True
    assert [slot.tick(elapsed) for elapsed in (0.5, 60.0, 0.5)] == [0.5, 1.5, 2.0]


def test_only_the_requests_that_a_dead_worker_was_computing_are_suspects() -> None:
    slot = Slot(0, RoundBound(1.0), 0.5, lambda slot, report: None, lambda slot: None)
    slot.requests = {key: request(key) for key in range(4)}
    slot._cancelled = {3}
    slot._worker = cast("WorkerProcess", SimpleNamespace(record=SimpleNamespace(read=lambda: {1, 3})))
    assert slot.empty() == ([request(1)], [request(0), request(2)])
    assert not slot.requests
