"""Engines behind sockets: workers on threads of this process, so that a test can hold them up or break them."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from attendant.runtime.decoding.offline import decode_all
from attendant.runtime.decoding.options import DecodingOptions
from attendant.server.engine.door import DoorLimits
from attendant.server.engine.engine import Engine
from attendant.server.engine.queueing.scheduler import Budget
from attendant.server.engine.remote.frames import Frames, framed, receive_one
from attendant.server.engine.remote.serving import serve_engine
from attendant.server.engine.remote.worker_pool import WorkerPool
from attendant.server.engine.request import Priority, Result, StepStats
from attendant.server.engine.runner import EngineRunner
from attendant.server.errors import Draining, EngineDead
from tests.fakes import SPECIAL_IDS, FakeStepper
from tests.serving import PATIENCE_SECONDS, GatedStepper, answered, eventually

LONG = DecodingOptions(min_length=30, max_length=30)


def work(connection: socket.socket, stepper: FakeStepper, max_rows: int) -> None:
    """A worker's life, as in server/process/worker_main.py: a failed step ends it."""
    with connection, suppress(RuntimeError, OSError):
        serve_engine(connection, Engine(stepper, Budget(max_rows=max_rows, max_source_positions=1000), SPECIAL_IDS))


@asynccontextmanager
async def running(
    *steppers: FakeStepper, max_rows: int = 4, on_death: Callable[[], None] = lambda: None
) -> AsyncIterator[tuple[EngineRunner, list[StepStats]]]:
    pairs = [socket.socketpair() for _ in steppers]
    threads = [
        threading.Thread(target=work, args=(theirs, stepper, max_rows))
        for (_, theirs), stepper in zip(pairs, steppers, strict=True)
    ]
    for thread in threads:
        thread.start()
    stats: list[StepStats] = []
    host = WorkerPool([ours for ours, _ in pairs], max_rows=max_rows, on_step=stats.append)
    runner = EngineRunner(
        host, limits=DoorLimits(max_waiting=10, max_wait_seconds=60.0), max_bulk=20, on_death=on_death
    )
    await runner.start()
    try:
        yield runner, stats
    finally:
        await runner.stop()
        for stepper in steppers:
            if isinstance(stepper, GatedStepper):
                stepper.open()
        for thread in threads:
            await asyncio.to_thread(thread.join, PATIENCE_SECONDS)
            assert not thread.is_alive()


def ask(runner: EngineRunner, wanted: DecodingOptions = LONG) -> "asyncio.Task[Result]":
    async def answer() -> Result:
        return await answered(runner.submit((4, 5, 3), wanted, None))

    return asyncio.create_task(answer())


def ask_bulk(runner: EngineRunner, source: tuple[int, ...], wanted: DecodingOptions, told: list[object]) -> None:
    submitted = runner.submit(source, wanted, None, Priority.BULK)
    submitted.add_done_callback(lambda ended: told.append(ended.result()))


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


async def test_bulk_and_interactive_by_the_same_door() -> None:
    async with running(FakeStepper(), FakeStepper()) as (runner, stats):
        told: list[object] = []
        for _ in range(12):
            ask_bulk(runner, (4, 5, 3), LONG, told)
        assert isinstance((await ended(ask(runner)))[0], Result)
        await eventually(lambda: len(told) == 12)
        assert {one.priority for one in stats} >= {Priority.INTERACTIVE, Priority.BULK}


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


async def test_cancelling_reaches_the_worker() -> None:
    stepper = GatedStepper(7)
    async with running(stepper) as (runner, stats):
        task = ask(runner, DecodingOptions(beam_size=3, min_length=30, max_length=30))
        for _ in range(2):
            await stepper.arrival()
            stepper.let_one_pass()
        await stepper.arrival()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.01)  # on its way by socket, which nothing else tells
        stepper.let_one_pass()
        await eventually(lambda: bool(stats) and stats[-1].cancelled_rows == 3)
        assert runner.num_rows == 0 and stepper.num_steps == 3


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


async def test_draining_and_stopping() -> None:
    stepper = GatedStepper(7)
    async with running(stepper, max_rows=1) as (runner, _):
        tasks = [ask(runner), ask(runner)]
        await stepper.arrival()
        runner.drain()
        with pytest.raises(Draining):
            await ask(runner)
        await runner.stop()
        assert [type(one) for one in await ended(*tasks)] == [Draining] * 2


async def test_a_worker_that_does_not_listen_does_not_hold_up_the_server() -> None:
    stepper = GatedStepper(7)
    async with running(stepper, max_rows=1) as (runner, _):
        task = ask(runner)
        await stepper.arrival()
        source = (4,) * 5000
        told: list[object] = []
        for _ in range(200):  # several times what a socket holds
            ask_bulk(runner, source, DecodingOptions(max_length=1), told)
            await asyncio.sleep(0)
        stepper.open()
        assert isinstance((await ended(task))[0], Result)
        await eventually(lambda: len(told) == 200)


def test_messages_arrive_whole_however_they_are_cut() -> None:
    messages = [{"number": number, "bulk": "x" * number * 7} for number in range(50)]
    stream = b"".join(map(framed, messages))
    for size in (1, 3, 64, len(stream)):
        frames = Frames()
        got = [one for at in range(0, len(stream), size) for one in frames.feed(stream[at : at + size])]
        assert got == messages


def test_a_message_that_is_waited_for() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.sendall(framed("first") + framed("second") + b"\1\0\0\0")
        theirs.close()
        assert [receive_one(ours) for _ in range(3)] == ["first", "second", None]
