"""Engines behind sockets: who decodes what, and what becomes of it when a worker dies or hangs."""

import asyncio
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from attendant.runtime.decoding.batch import decode_all
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.errors import UserError
from attendant.runtime.stepper import DecoderState
from attendant.server.config import ServerConfig
from attendant.server.engine import pool as pools
from attendant.server.engine import shares
from attendant.server.engine.client import EngineClient
from attendant.server.engine.request import BulkRoom, Priority, Result, StepStats
from attendant.server.engine.shares import SharedRows
from attendant.server.engine.supervision import Slot
from attendant.server.errors import EngineDead, OutOfTime, PoisonedRequest
from tests.fakes import SPECIAL_IDS, FakeStepper
from tests.serving import PATIENCE_SECONDS, GatedStepper, answered, eventually, submit
from tests.workers import thread_pool

LONG = DecodingOptions(min_length=30, max_length=30)
POISON = 6


@asynccontextmanager
async def running(
    *steppers: FakeStepper, max_rows: int = 4, on_death: Callable[[], None] = lambda: None, **options: Any
) -> AsyncIterator[tuple[EngineClient, list[StepStats]]]:
    stats: list[StepStats] = []
    pool = thread_pool(*steppers, max_rows=max_rows, on_step=stats.append, **options)
    runner = EngineClient(pool, ServerConfig(bundles=()), max_bulk=20, on_death=on_death)
    await runner.start()
    try:
        yield runner, stats
    finally:
        runner.stop()
        for stepper in steppers:
            if isinstance(stepper, GatedStepper):
                stepper.open()


def ask(runner: EngineClient, wanted: DecodingOptions = LONG) -> "asyncio.Task[Result]":
    async def answer() -> Result:
        return await answered(submit(runner, (4, 5, 3), wanted, None))

    return asyncio.create_task(answer())


def ask_bulk(runner: EngineClient, source: tuple[int, ...], wanted: DecodingOptions, outcomes: list[object]) -> None:
    submitted = submit(runner, source, wanted, None, Priority.BULK)
    submitted.add_done_callback(lambda ended: outcomes.append(ended.result()))


async def ended(*tasks: "asyncio.Task[Result]") -> list[Result | BaseException]:
    return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE_SECONDS)


async def test_answers_are_those_of_offline_decoding_whoever_gave_them() -> None:
    steppers = FakeStepper(), FakeStepper()
    wanted = [DecodingOptions(beam_size=1 + number % 3, max_length=12, attention=True) for number in range(20)]
    async with running(*steppers, max_rows=6) as (runner, stats):
        results = await ended(*(ask(runner, one) for one in wanted[:10]))
        results += await ended(*(ask(runner, one) for one in wanted[10:]))
        await eventually(lambda: (runner.num_waiting, runner.num_running, runner.num_rows) == (0, 0, 0))
    expected = decode_all(FakeStepper(), [(4, 5, 3)] * 20, wanted, SPECIAL_IDS)
    for result, hypotheses in zip(results, expected, strict=True):
        assert isinstance(result, Result)
        assert [one.token_ids for one in result.hypotheses] == [one.token_ids for one in hypotheses]
        assert [one.score for one in result.hypotheses] == [one.score for one in hypotheses]
        assert result.stats.total > 0
    assert all(stepper.num_steps for stepper in steppers), "both had work"
    assert sum(one.num_rows > 0 for one in stats) == sum(stepper.num_steps for stepper in steppers)


async def test_who_was_answered_goes_on_before_the_steps_are_counted() -> None:
    stepper = FakeStepper()
    async with running(stepper) as (runner, stats):
        await answered(submit(runner, (4, 5, 3), LONG, None))
        assert sum(one.num_rows for one in stats) < stepper.num_steps
        await eventually(lambda: sum(one.num_rows for one in stats) == stepper.num_steps)


async def test_the_queue_is_the_servers() -> None:
    steppers = GatedStepper(7), GatedStepper(7)
    async with running(*steppers, max_rows=1) as (runner, _):
        tasks = [ask(runner) for _ in range(5)]
        for stepper in steppers:
            await stepper.arrival()
        assert runner.num_waiting == 3
        tasks[4].cancel()
        await eventually(lambda: runner.num_waiting == 2)
        steppers[1].open()
        assert all(isinstance(one, Result) for one in await ended(*tasks[1:4])), "one worker does the work of both"
        steppers[0].open()
        assert isinstance((await ended(tasks[0]))[0], Result)


async def test_what_waits_too_long_is_told_while_no_worker_says_anything() -> None:
    stepper = GatedStepper(7)
    async with running(stepper, max_rows=1) as (runner, _):
        first = ask(runner)
        await stepper.arrival()
        second = submit(runner, (4, 5, 3), LONG, 0.2)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert isinstance(await second, OutOfTime)
        stepper.open()
        assert isinstance((await ended(first))[0], Result)


async def test_a_worker_that_dies_fails_everybody_and_says_so_once() -> None:
    broken, whole, deaths = GatedStepper(7), GatedStepper(7), []
    broken.fail_at_step = 2
    async with running(broken, whole, max_rows=1, on_death=lambda: deaths.append(1)) as (runner, _):
        tasks = [ask(runner) for _ in range(4)]
        await whole.arrival()
        broken.open()
        assert [type(one) for one in await ended(*tasks)] == [EngineDead] * 4
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
            ask_bulk(runner, (POISON if number == 7 else 4 + number % 2, 5, 3), LONG, outcomes)
        tasks = [ask(runner) for _ in range(6)]
        assert all(isinstance(one, Result) for one in await ended(*tasks))
        await eventually(lambda: len(outcomes) == 30)
        assert sum(isinstance(one, PoisonedRequest) for one in outcomes) == 1
        assert sum(isinstance(one, Result) for one in outcomes) == 29
        assert (runner.num_waiting, runner.num_running) == (0, 0)
        assert available == ([False, False, True] if num_workers == 1 else []), "with two there is always one"
        again = await ended(asyncio.ensure_future(answered(submit(runner, (POISON, 5, 3), LONG, None))))
        assert isinstance(again[0], PoisonedRequest), "without a third death, which would be the last"


async def test_cancelled_suspects_are_not_tried() -> None:
    loaded = threading.Event()
    broken = GatedStepper(7)
    broken.fail_at_step = 1
    whole = FakeStepper()
    loads = iter([lambda: None, loaded.wait])
    options = {"num_workers": 1, "max_restarts": 1, "load": lambda: next(loads)()}
    async with running(broken, whole, max_rows=4, **options) as (runner, _):
        tasks = [ask(runner) for _ in range(3)]
        await broken.arrival()
        await asyncio.sleep(0.01)  # on their way by socket, which nothing else tells
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


async def test_a_worker_that_hangs_is_replaced_and_its_requests_are_decoded_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pools, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(pools, "ENDING_SECONDS", 0.05)
    steppers, restarts = (GatedStepper(7), FakeStepper()), list[int]()
    options = {"num_workers": 1, "max_restarts": 1, "on_restart": lambda: restarts.append(1)}
    async with running(*steppers, hang_seconds=0.2, **options) as (runner, _):
        await asyncio.sleep(0.5)  # it may be silent as long as it likes while it has no work
        assert not restarts
        results = await ended(*(ask(runner) for _ in range(3)))
        assert all(isinstance(one, Result) for one in results) and restarts == [1]
        assert (runner.num_waiting, runner.num_running, runner.num_rows) == (0, 0, 0)


async def test_workers_that_hang_again_and_again_end_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(pools, "ENDING_SECONDS", 0.05)
    deaths: list[int] = []
    options = {"num_workers": 1, "max_restarts": 1, "on_death": lambda: deaths.append(1)}
    async with running(GatedStepper(7), GatedStepper(7), hang_seconds=0.2, **options) as (runner, _):
        results = await ended(*(ask(runner) for _ in range(3)))
        assert {type(one) for one in results} == {EngineDead, PoisonedRequest}
        assert deaths == [1]


async def test_a_worker_that_does_not_load_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(pools, "LOADING_SLACK_SECONDS", 0.2)
    never = threading.Event()
    with pytest.raises(RuntimeError, match="ended while it loaded"):
        async with running(FakeStepper(), load=never.wait, load_seconds=0.01):
            raise AssertionError("it has started")
    never.set()


async def test_a_bundle_that_has_changed_meanwhile_is_not_served() -> None:
    broken, deaths = FakeStepper(), []
    broken.fail_at_step = 1

    def refuse() -> None:
        raise UserError("it is another one")

    loads = iter([lambda: None, refuse])
    options = {"num_workers": 1, "max_restarts": 5, "load": lambda: next(loads)()}
    async with running(broken, FakeStepper(), on_death=lambda: deaths.append(1), **options) as (runner, _):
        assert [type(one) for one in await ended(ask(runner))] == [EngineDead]
        assert deaths == [1]


async def test_a_worker_that_does_not_listen_does_not_hold_up_the_server() -> None:
    stepper = GatedStepper(7)
    async with running(stepper, max_rows=1) as (runner, _):
        task = ask(runner)
        await stepper.arrival()
        source = (4,) * 5000
        outcomes: list[object] = []
        for _ in range(200):  # several times what a socket holds
            ask_bulk(runner, source, DecodingOptions(max_length=1), outcomes)
            await asyncio.sleep(0)
        stepper.open()
        assert isinstance((await ended(task))[0], Result)
        await eventually(lambda: len(outcomes) == 200)


async def test_models_share_the_rows_of_a_server() -> None:
    shared, gated = SharedRows(2), GatedStepper(7)
    async with (
        running(gated, max_rows=2, shared_rows=shared) as (first, _),
        running(FakeStepper(), max_rows=2, shared_rows=shared) as (second, _),
    ):
        mine = [ask(first) for _ in range(3)]
        await gated.arrival()
        theirs = ask(second)
        await eventually(lambda: second.num_waiting == 1)
        mine[0].cancel()
        await eventually(mine[0].done)
        for _ in range(2):  # the step under way, and the one that sees that the caller has gone
            gated.let_one_pass()
        assert isinstance((await ended(theirs))[0], Result)
        # What a model that goes still had is free as well, whether or not its worker says how it ended.
        first.stop()
        gated.open()
        assert [type(one) for one in await ended(*(ask(second) for _ in range(2)))] == [Result, Result]
        await ended(*mine)


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
            return max(one.num_rows for one in stats)

        assert await most_rows() == 4
        outcomes: list[object] = []
        ask_bulk(first, (4, 5, 3), LONG, outcomes)
        await gated.arrival()
        assert await most_rows() == 2
        gated.open()
        await eventually(lambda: bool(outcomes))
        assert await most_rows() == 4


async def test_every_worker_is_told_whether_bulk_work_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(shares, "ALONE_SECONDS", 0.05)
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
            ask_bulk(runner, (4, 5, 3), LONG, outcomes)
            await stepper.arrival()
        await eventually(lambda: rooms[0][-1].is_alone and rooms[1][-1].is_alone)
        waiting = ask(runner)
        await asyncio.sleep(0)
        assert rooms[0][-1] == rooms[1][-1] == BulkRoom(4, is_alone=False), "only one of them has the request"
        for stepper in steppers:
            stepper.open()
        assert isinstance((await ended(waiting))[0], Result)
