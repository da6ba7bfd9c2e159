"""Requests to an engine, and their outcomes, from an event loop as in the server."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from attendant.runtime.decoding.options import DecodingOptions
from attendant.server.config import LIGHT_ROWS, ServerConfig
from attendant.server.engine.client import DELIVERED_AT_ONCE, HEAVY_WEIGHT, EngineClient
from attendant.server.engine.estimates import ThroughputEstimate
from attendant.server.engine.queue import Ahead
from attendant.server.engine.request import Outcome, Outcomes, Priority, Result, StepStats
from attendant.server.errors import Cancelled, DeadlineExceeded, Draining, QueueFull
from tests.fakes import FakeStepper
from tests.serving import GatedStepper, answered, eventually, submit
from tests.workers import thread_pool

LONG = DecodingOptions(min_length=30, max_length=30)
STEP_OF_A_SECOND = StepStats(Priority.INTERACTIVE, 1, 0, 0, 1, 1, {"step": 1.0})


def ask(runner: EngineClient, wanted: DecodingOptions = LONG, timeout: float | None = None) -> asyncio.Task[Result]:
    async def answer() -> Result:
        return await answered(submit(runner, (4, 5, 3), wanted, timeout))

    return asyncio.create_task(answer())


def ask_bulk(runner: EngineClient, outcomes: list[Any]) -> "asyncio.Future[Outcome]":
    submitted = submit(runner, (4, 5, 3), LONG, None, Priority.BULK)
    submitted.add_done_callback(lambda ended: outcomes.append("cancelled" if ended.cancelled() else ended.result()))
    return submitted


@asynccontextmanager
async def running(
    stepper: FakeStepper, *, max_rows: int = 4, max_waiting: int = 10, on_death: Callable[[], None] = lambda: None
) -> AsyncIterator[tuple[EngineClient, list[StepStats]]]:
    stats: list[StepStats] = []
    pool = thread_pool(stepper, max_rows=max_rows, on_step=stats.append)
    config = ServerConfig(bundles=(), max_waiting=max_waiting, max_wait_seconds=60.0)
    runner = EngineClient(pool, config, max_bulk=4, on_death=on_death)
    await runner.start()
    try:
        yield runner, stats
    finally:
        if isinstance(stepper, GatedStepper):
            stepper.open()
        runner.stop()


async def ended(*tasks: asyncio.Task[Result]) -> list[Any]:
    return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 20)


async def test_outcomes_of_one_step_are_told_together(monkeypatch: pytest.MonkeyPatch) -> None:
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
        await asyncio.sleep(0.01)  # on their way by socket, which nothing else tells
        stepper.open()
        await ended(*tasks)
        assert [length for length in lengths if length] == [1, 3], "the first is a step ahead of the others"


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


async def test_what_has_ended_is_told_though_the_server_stops() -> None:
    stepper = FakeStepper()
    async with running(stepper, max_rows=100, max_waiting=100) as (runner, _):
        wide = DecodingOptions(max_length=2, beam_size=LIGHT_ROWS + 1)
        tasks = [asyncio.ensure_future(submit(runner, (4,), wide, None)) for _ in range(20)]
        await eventually(lambda: any(task.done() for task in tasks))
        runner.stop()
        assert {type(one) for one in await asyncio.gather(*tasks)} <= {Result, Draining}


async def test_a_full_queue_refuses_at_once() -> None:
    stepper = GatedStepper(7)
    async with running(stepper, max_rows=1, max_waiting=4) as (runner, _):
        tasks = [ask(runner)]
        await stepper.arrival()
        tasks += [ask(runner), ask(runner)]
        await eventually(lambda: runner.num_waiting == 2)
        with pytest.raises(QueueFull) as caught:
            await ask(runner)
        assert caught.value.retry_seconds > 0
        tasks[1].cancel()
        stepper.open()
        first, second, third = await ended(*tasks)
        assert isinstance(first, Result) and isinstance(third, Result)
        assert isinstance(second, asyncio.CancelledError)


async def test_a_deadline_ends_a_running_request() -> None:
    stepper = GatedStepper(7)
    async with running(stepper) as (runner, _):
        task = ask(runner, timeout=0.05)
        await stepper.arrival()
        await asyncio.sleep(0.06)  # not to synchronize: this is the deadline's own time
        stepper.let_one_pass()
        (outcome,) = await ended(task)
        assert isinstance(outcome, DeadlineExceeded)
        assert runner.num_rows == 0


async def test_cancelling_frees_the_rows_within_one_step() -> None:
    stepper = GatedStepper(7)
    async with running(stepper) as (runner, stats):
        task = ask(runner, DecodingOptions(beam_size=3, min_length=30, max_length=30))
        await stepper.arrival()
        stepper.let_one_pass()
        await stepper.arrival()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.01)  # on its way by socket, which nothing else tells
        stepper.let_one_pass()
        await eventually(lambda: runner.num_rows == 0)
        await eventually(lambda: bool(stats) and stats[-1].cancelled_rows == 3)
        assert stepper.num_steps == 2, "the step under way was its last"


async def test_draining_lets_nobody_in_and_everybody_finish() -> None:
    stepper, bulk = GatedStepper(7), list[Any]()
    async with running(stepper, max_rows=1) as (runner, _):
        tasks = [ask(runner), ask(runner)]
        ask_bulk(runner, bulk)
        await stepper.arrival()
        runner.drain()
        for refused in (lambda: ask(runner), lambda: ask_bulk(runner, bulk)):
            with pytest.raises(Draining):
                await refused()
        stepper.open()
        await asyncio.wait_for(runner.finished(), 20)
        assert all(isinstance(result, Result) for result in (*await ended(*tasks), *bulk)) and len(bulk) == 1


async def test_stopping_tells_those_that_are_still_in() -> None:
    stepper = GatedStepper(7)
    async with running(stepper, max_rows=1) as (runner, _):
        tasks = [ask(runner), ask(runner)]
        await stepper.arrival()
        runner.stop()
        stepper.let_one_pass()
        assert [type(one) for one in await ended(*tasks)] == [Draining] * 2


async def test_bulk_work_is_told_by_call_and_may_be_cancelled() -> None:
    stepper, outcomes = GatedStepper(7), list[Any]()
    async with running(stepper) as (runner, _):
        submitted = [ask_bulk(runner, outcomes) for _ in range(3)]
        await stepper.arrival()
        assert submitted[0].cancel()
        assert not submitted[0].cancel()
        stepper.open()
        await eventually(lambda: len(outcomes) == 3)
        assert outcomes[0] == "cancelled" and all(isinstance(one, Result) for one in outcomes[1:])
        await eventually(lambda: runner.num_running == 0)


async def test_an_idle_engine_does_nothing() -> None:
    stepper = FakeStepper()
    async with running(stepper) as (runner, stats):
        await ended(ask(runner))
        rounds = len(stats)
        await ended(ask(runner, DecodingOptions(max_length=1)))
        assert len(stats) <= rounds + 2, "no rounds but those of the requests"
