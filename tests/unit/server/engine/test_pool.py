"""Tests of requests to engines behind sockets, of workers that die or hang, and of their supervision."""

import asyncio
import copy
import itertools
import os
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.errors import UserError
from attendant.runtime.stepper import DecoderState
from attendant.server.config import LIGHT_ROWS, ServerConfig
from attendant.server.engine import dispatch, processes
from attendant.server.engine import pool as pools
from attendant.server.engine.client import DELIVERED_AT_ONCE, HEAVY_WEIGHT, EngineClient
from attendant.server.engine.dispatch import Ahead, SharedRows, ThroughputEstimate
from attendant.server.engine.messages import (
    BulkRoom,
    FlightRecord,
    Outcome,
    Outcomes,
    Priority,
    Result,
    StepStats,
    new_record,
)
from attendant.server.engine.pool import (
    MAX_POISONED,
    Poisoned,
    Quarantine,
    RoundBound,
    Slot,
    WorkerLost,
)
from attendant.server.engine.processes import (
    END_SECONDS,
    MAX_DELAY_SECONDS,
    RESTARTS_WINDOW_SECONDS,
    Restarts,
    WorkerProcess,
    WorkerProcesses,
)
from attendant.server.errors import Cancelled, Draining, EngineDead, OutOfTime, PoisonedRequest
from tests.fakes import FakeStepper
from tests.serving import PATIENCE_SECONDS, GatedStepper, answered, eventually, submit
from tests.unit.server.engine.test_scheduler import BULK, INTERACTIVE, request
from tests.workers import thread_pool

LONG = DecodingOptions(min_length=30, max_length=30)
POISON = 6


@asynccontextmanager
async def running(
    *steppers: FakeStepper,
    max_rows: int = 4,
    max_waiting: int = 100,
    on_death: Callable[[], None] = lambda: None,
    **options: Any,
) -> AsyncIterator[tuple[EngineClient, list[StepStats]]]:
    """Runs a worker per stepper; yields their client and the statistics of their steps."""
    stats: list[StepStats] = []
    pool = thread_pool(*steppers, max_rows=max_rows, on_step=stats.append, **options)
    config = ServerConfig(bundles=(), max_waiting=max_waiting, max_wait_seconds=60.0)
    runner = EngineClient(pool, config, max_bulk=20, on_death=on_death)
    await runner.start()
    try:
        yield runner, stats
    finally:
        runner.stop()
        for stepper in steppers:
            if isinstance(stepper, GatedStepper):
                stepper.open()


def ask(runner: EngineClient, options: DecodingOptions = LONG, timeout: float | None = None) -> "asyncio.Task[Result]":
    async def answer() -> Result:
        return await answered(submit(runner, (4, 5, 3), options, timeout))

    return asyncio.create_task(answer())


def ask_bulk(
    runner: EngineClient,
    outcomes: list[object],
    source: tuple[int, ...] = (4, 5, 3),
    options: DecodingOptions = LONG,
) -> "asyncio.Future[Outcome]":
    submitted = submit(runner, source, options, None, Priority.BULK)
    submitted.add_done_callback(lambda ended: outcomes.append("cancelled" if ended.cancelled() else ended.result()))
    return submitted


async def ended(*tasks: "asyncio.Task[Result]") -> list[Result | BaseException]:
    return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE_SECONDS)


async def test_an_answer_is_delivered_before_its_steps_are_counted() -> None:
    stepper = FakeStepper()
    async with running(stepper) as (runner, stats):
        await answered(submit(runner, (4, 5, 3), LONG, None))
        assert sum(step.num_rows for step in stats) < stepper.num_steps
        await eventually(lambda: sum(step.num_rows for step in stats) == stepper.num_steps)


async def test_a_request_that_waits_too_long_ends_while_the_worker_is_silent() -> None:
    stepper = GatedStepper(7)
    async with running(stepper, max_rows=1) as (runner, _):
        first = ask(runner)
        await stepper.arrival()
        second = submit(runner, (4, 5, 3), LONG, 0.2)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert isinstance(await second, OutOfTime)
        stepper.open()
        assert isinstance((await ended(first))[0], Result)


async def test_a_worker_that_dies_fails_all_requests_and_is_reported_once() -> None:
    broken, whole, deaths = GatedStepper(7), GatedStepper(7), []
    broken.fail_at_step = 2
    async with running(broken, whole, max_rows=1, on_death=lambda: deaths.append(1)) as (runner, _):
        tasks = [ask(runner) for _ in range(4)]
        await whole.arrival()
        broken.open()
        assert [type(outcome) for outcome in await ended(*tasks)] == [EngineDead] * 4
        with pytest.raises(EngineDead):
            await ask(runner)
        assert deaths == [1]
        await asyncio.wait_for(runner.finished(), PATIENCE_SECONDS)


class PoisonedStepper(FakeStepper):
    """Fails whenever a source begins with POISON."""

    def encode(self, sources: Sequence[Sequence[int]]) -> DecoderState:
        if any(source[0] == POISON for source in sources):
            raise RuntimeError("poisoned")
        return super().encode(sources)


@pytest.mark.parametrize("num_workers", [1, 2])
async def test_a_poisoned_request_takes_its_neighbours_along_once(num_workers: int) -> None:
    available: list[bool] = []
    steppers = [PoisonedStepper() for _ in range(num_workers + 2)]
    options = {"num_workers": num_workers, "max_restarts": 2, "on_available": available.append}
    async with running(*steppers, max_rows=64, **options) as (runner, _):
        outcomes: list[object] = []
        for number in range(30):
            ask_bulk(runner, outcomes, (POISON if number == 7 else 4 + number % 2, 5, 3))
        tasks = [ask(runner) for _ in range(6)]
        assert all(isinstance(outcome, Result) for outcome in await ended(*tasks))
        await eventually(lambda: len(outcomes) == 30)
        assert sum(isinstance(outcome, PoisonedRequest) for outcome in outcomes) == 1
        assert sum(isinstance(outcome, Result) for outcome in outcomes) == 29
        assert (runner.num_waiting, runner.num_running) == (0, 0)
        assert available == ([False, False, True] if num_workers == 1 else []), "with two there is always one"
        again = await ended(asyncio.ensure_future(answered(submit(runner, (POISON, 5, 3), LONG, None))))
        assert isinstance(again[0], PoisonedRequest), "without a third death, which would be the last"


async def test_cancelled_suspects_are_not_tried_again() -> None:
    loaded = threading.Event()
    broken = GatedStepper(7)
    broken.fail_at_step = 1
    whole = FakeStepper()
    loads = iter([lambda: None, loaded.wait])
    options = {"num_workers": 1, "max_restarts": 1, "load": lambda: next(loads)()}
    async with running(broken, whole, max_rows=4, **options) as (runner, _):
        tasks = [ask(runner) for _ in range(3)]
        await broken.arrival()
        await asyncio.sleep(0.01)  # no event signals that the worker has received them
        broken.open()
        await eventually(lambda: runner.num_running == 0)
        tasks[1].cancel()
        await asyncio.sleep(0)
        loaded.set()
        first, second, third = await ended(*tasks)
        assert isinstance(first, Result) and isinstance(third, Result)
        assert isinstance(second, asyncio.CancelledError)
        assert whole.num_encodes == 2, "each alone"
        assert runner.num_waiting == 0


async def test_a_worker_that_does_not_load_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(pools, "LOADING_SLACK_SECONDS", 0.2)
    never = threading.Event()
    with pytest.raises(WorkerLost, match="ended while it loaded"):
        async with running(FakeStepper(), load=never.wait, load_seconds=0.01):
            raise AssertionError("it has started")
    never.set()


async def test_a_worker_that_dies_while_others_load_is_replaced() -> None:
    loaded, num_loads, restarts = threading.Event(), itertools.count(), list[int]()

    def load() -> None:
        if next(num_loads) == 1:
            assert loaded.wait(PATIENCE_SECONDS)

    crashing = FakeStepper()
    crashing.fail_at_step = 1
    steppers = FakeStepper(), FakeStepper(), crashing, FakeStepper()
    options = {"num_workers": 2, "max_restarts": 5, "load": load, "on_restart": lambda: restarts.append(1)}
    pool = thread_pool(*steppers, **options)
    runner = EngineClient(pool, ServerConfig(bundles=()), max_bulk=20, on_death=lambda: None)
    starting = asyncio.create_task(runner.start())
    await eventually(lambda: pool.is_available)
    (ready,) = [slot for slot in pool._slots if not slot.is_loading]
    ready.kill()
    await eventually(lambda: bool(restarts) and pool.is_available)
    loaded.set()
    await starting
    results = await ended(*(ask(runner) for _ in range(12)))
    assert all(isinstance(result, Result) for result in results), "none went to a worker that had died"
    assert pool.freeing(Priority.INTERACTIVE, 10**6, 0) is None, "all have ended, also those that died"
    runner.stop()


async def test_a_bundle_that_has_changed_meanwhile_is_not_served() -> None:
    broken, deaths = FakeStepper(), []
    broken.fail_at_step = 1

    def refuse() -> None:
        raise UserError("it is another one")

    loads = iter([lambda: None, refuse])
    options = {"num_workers": 1, "max_restarts": 5, "load": lambda: next(loads)()}
    async with running(broken, FakeStepper(), on_death=lambda: deaths.append(1), **options) as (runner, _):
        assert [type(outcome) for outcome in await ended(ask(runner))] == [EngineDead]
        assert deaths == [1]


async def test_a_bundle_that_can_not_be_read_for_a_while_ends_no_other_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "RETRY_SECONDS", 0.01)
    broken, deaths, loads = FakeStepper(), list[int](), itertools.count()
    broken.fail_at_step = 1

    def load() -> None:
        if 2 <= next(loads) < 6:
            raise UserError("permission denied")

    options = {"num_workers": 2, "max_restarts": 1, "load": load, "on_death": lambda: deaths.append(1)}
    async with running(broken, *(FakeStepper() for _ in range(6)), **options) as (runner, _):
        results = await ended(*(ask(runner) for _ in range(12)))
        assert all(isinstance(result, Result) for result in results) and not deaths
        await eventually(lambda: next(copy.copy(loads)) == 7)
        assert not deaths


async def test_a_worker_that_does_not_listen_does_not_hold_up_the_server() -> None:
    stepper = GatedStepper(7)
    async with running(stepper, max_rows=1) as (runner, _):
        task = ask(runner)
        await stepper.arrival()
        source = (4,) * 5000
        outcomes: list[object] = []
        for _ in range(200):  # several times the socket's buffer
            ask_bulk(runner, outcomes, source, DecodingOptions(max_length=1))
            await asyncio.sleep(0)
        stepper.open()
        assert isinstance((await ended(task))[0], Result)
        await eventually(lambda: len(outcomes) == 200)


async def test_models_divide_the_rows_for_bulk_work() -> None:
    shared, gated = SharedRows(4), GatedStepper(7)
    async with (
        running(gated, max_rows=4, shared_rows=shared) as (first, _),
        running(FakeStepper(), max_rows=4, shared_rows=shared) as (second, stats),
    ):

        async def most_rows() -> int:
            stats.clear()
            await asyncio.wait([submit(second, (4, 5, 3), LONG, None, Priority.BULK) for _ in range(8)])
            await eventually(lambda: second.num_rows == 0)
            return max(step.num_rows for step in stats)

        assert await most_rows() == 4
        outcomes: list[object] = []
        ask_bulk(first, outcomes)
        await gated.arrival()
        assert await most_rows() == 2
        gated.open()
        await eventually(lambda: bool(outcomes))
        assert await most_rows() == 4


async def test_every_worker_learns_if_bulk_work_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(dispatch, "ALONE_SECONDS", 0.05)
    rooms: dict[int, list[BulkRoom]] = defaultdict(list)
    limit_bulk = Slot.limit_bulk

    def note(slot: Slot, room: BulkRoom) -> None:
        rooms[slot.number].append(room)
        limit_bulk(slot, room)

    monkeypatch.setattr(Slot, "limit_bulk", note)
    steppers = GatedStepper(7), GatedStepper(7)
    async with running(*steppers) as (runner, _):
        outcomes: list[object] = []
        for stepper in steppers:
            ask_bulk(runner, outcomes)
            await stepper.arrival()
        await eventually(lambda: rooms[0][-1].is_alone and rooms[1][-1].is_alone)
        waiting = ask(runner)
        await asyncio.sleep(0)
        assert rooms[0][-1] == rooms[1][-1] == BulkRoom(4, is_alone=False), "only one of them has the request"
        for stepper in steppers:
            stepper.open()
        assert isinstance((await ended(waiting))[0], Result)


@pytest.mark.parametrize(
    ("priority", "at_once"),
    [(Priority.INTERACTIVE, DELIVERED_AT_ONCE // HEAVY_WEIGHT), (Priority.BULK, DELIVERED_AT_ONCE)],
    ids=["heavy", "bulk"],
)
async def test_outcomes_of_a_flood_are_delivered_in_turns_with_other_work(priority: Priority, at_once: int) -> None:
    pool: Any = SimpleNamespace(
        num_engines=1,
        max_rows=256,
        throughput=ThroughputEstimate(),
        num_waiting=lambda priority: 0,
        ahead=lambda *request: Ahead(0.0, 0.0, 0),
        freeing=lambda *request: None,
        submit=lambda request: None,
        stop=lambda: None,
    )
    runner = EngineClient(pool, ServerConfig(bundles=()), max_bulk=4, on_death=lambda: None)
    wide = DecodingOptions(max_length=5, beam_size=LIGHT_ROWS + 1)
    flood = [submit(runner, (4,), wide, None, priority, "flood") for _ in range(3 * at_once + 1)]
    small = submit(runner, (4,), LONG, None, client="other")
    runner._deliver([(key, Cancelled()) for key in range(len(flood) + 1)])
    assert small.done()
    for turn in range(1, 4):
        assert sum(submitted.done() for submitted in flood) == turn * at_once
        await asyncio.sleep(0)
    assert all(isinstance(submitted.result(), Cancelled) for submitted in flood)


async def test_ended_requests_are_delivered_though_the_server_stops() -> None:
    stepper = FakeStepper()
    async with running(stepper, max_rows=100, max_waiting=100) as (runner, _):
        wide = DecodingOptions(max_length=2, beam_size=LIGHT_ROWS + 1)
        tasks = [asyncio.ensure_future(submit(runner, (4,), wide, None)) for _ in range(20)]
        await eventually(lambda: any(task.done() for task in tasks))
        runner.stop()
        assert {type(outcome) for outcome in await asyncio.gather(*tasks)} <= {Result, Draining}


async def test_an_idle_engine_does_nothing() -> None:
    stepper = FakeStepper()
    async with running(stepper) as (runner, stats):
        await ended(ask(runner))
        rounds = len(stats)
        await ended(ask(runner, DecodingOptions(max_length=1)))
        assert len(stats) <= rounds + 2, "no rounds but those of the requests"


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
    assert restarts.delay(RESTARTS_WINDOW_SECONDS) == 0.0, "deaths before the window are forgotten"
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


def test_hanging_workers_share_the_time_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now, killed = 100.0, list[int]()

    class HangingProcess:
        def __init__(self, config: ServerConfig) -> None:
            self.is_running = True

        def hang_up(self) -> None:
            assert not killed, "every process is asked to end before the server waits for one"

        def wait(self, timeout_seconds: float) -> None:
            nonlocal now
            now += timeout_seconds
            killed.append(id(self))

    monkeypatch.setattr(processes, "_Process", HangingProcess)
    monkeypatch.setattr("attendant.server.engine.processes.time.monotonic", lambda: now)
    with WorkerProcesses(ServerConfig(bundles=())) as workers:
        for _ in range(5):
            workers._begin(ServerConfig(bundles=()))
    assert len(set(killed)) == 5
    assert now == 100.0 + END_SECONDS


async def test_all_workers_share_the_servers_queue() -> None:
    steppers = GatedStepper(7), GatedStepper(7)
    async with running(*steppers, max_rows=1) as (runner, _):
        tasks = [ask(runner) for _ in range(5)]
        for stepper in steppers:
            await stepper.arrival()
        assert runner.num_waiting == 3
        tasks[4].cancel()
        await eventually(lambda: runner.num_waiting == 2)
        steppers[1].open()
        assert all(isinstance(outcome, Result) for outcome in await ended(*tasks[1:4])), (
            "one worker does the work of both"
        )
        steppers[0].open()
        assert isinstance((await ended(tasks[0]))[0], Result)


async def test_outcomes_of_one_step_are_delivered_together(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    original = EngineClient._deliver

    def counted(runner: EngineClient, outcomes: Outcomes) -> None:
        lengths.append(len(outcomes))
        original(runner, outcomes)

    monkeypatch.setattr(EngineClient, "_deliver", counted)
    stepper = GatedStepper(7)
    async with running(stepper) as (runner, _):
        tasks = [ask(runner)]
        await stepper.arrival()
        tasks += [ask(runner) for _ in range(3)]
        await eventually(lambda: runner.num_running == 4)
        await asyncio.sleep(0.01)  # no event signals that the worker has received them
        stepper.open()
        await ended(*tasks)
        assert [length for length in lengths if length] == [1, 3], "the first is a step ahead of the others"
