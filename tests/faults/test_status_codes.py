"""Status codes under overload and at the end."""

import asyncio
import random
import signal
import time
from collections import Counter
from contextlib import ExitStack

import grpc
import pytest

from attendant_client import AttendantClient
from attendant_client.v1 import seq2seq_pb2 as messages
from attendant_client.v1 import seq2seq_pb2_grpc
from tests.faults.conftest import Figure, Start
from tests.faults.figures import at_least, at_most
from tests.server_process import Running
from tests.serving import code_of

DRAIN_SECONDS = 5.0


async def at_once(target: str, num_calls: int) -> Counter[str]:
    """Makes `num_calls` calls at once on one connection, without retries; returns their codes."""
    request = messages.GenerateRequest(text="badge")
    async with grpc.aio.insecure_channel(target, options=[("grpc.enable_retries", 0)]) as channel:
        stub = seq2seq_pb2_grpc.Seq2SeqStub(channel)
        calls = (code_of(stub.Generate(request, timeout=240)) for _ in range(num_calls))
        return Counter(await asyncio.gather(*calls))


async def until_it_ends(running: Running, *, num_connections: int, seconds: float) -> Counter[str]:
    """Repeats calls, without retries, until the server has ended after SIGTERM; returns their codes."""
    codes: Counter[str] = Counter()
    options = [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]
    gone = asyncio.Event()

    async def ask(stub: seq2seq_pb2_grpc.Seq2SeqStub) -> None:
        while not gone.is_set():
            code = await code_of(stub.Generate(messages.GenerateRequest(text="badge"), timeout=240))
            codes[code] += 1
            if code != "OK":
                await asyncio.sleep(0.005)

    channels = [grpc.aio.insecure_channel(running.target, options=options) for _ in range(num_connections)]
    asking = [
        asyncio.create_task(ask(seq2seq_pb2_grpc.Seq2SeqStub(channel))) for channel in channels for _ in range(16)
    ]
    await asyncio.sleep(seconds)
    running.process.send_signal(signal.SIGTERM)
    await asyncio.to_thread(running.process.wait, 240)
    gone.set()
    await asyncio.gather(*asking)
    for channel in channels:
        await channel.close()
    return codes


async def test_calls_made_at_once_on_one_connection_are_all_answered(start: Start) -> None:
    with start("--max-waiting", "100000") as running:
        assert await at_once(running.target, 1500) == {"OK": 1500}


async def test_at_the_end_calls_are_answered_or_unavailable(start: Start) -> None:
    with start("--workers", "2", "--drain-seconds", str(DRAIN_SECONDS)) as running:
        codes = await until_it_ends(running, num_connections=4, seconds=0.5)
        assert set(codes) == {"OK", "UNAVAILABLE"}
        assert running.process.returncode == 0


@pytest.mark.reliability
async def test_10000_calls_at_once(start: Start, figure: Figure) -> None:
    with start() as running:
        codes = await at_once(running.target, 10_000)
        figure("10,000 calls at once on one connection: answered", codes["OK"], at_least(1), "calls")
        figure("CANCELLED or any other code that is not retried", _not_retried(codes), at_most(0), "calls")
    with start() as running:
        async with AttendantClient(running.target) as client:
            answers = await asyncio.gather(
                *(client.generate("badge", timeout=240) for _ in range(10_000)), return_exceptions=True
            )
            failed = sum(isinstance(answer, BaseException) for answer in answers)
            figure("the same by the Python client, which retries: without an answer", failed, at_most(0), "calls")


@pytest.mark.reliability
@pytest.mark.timeout(1200)
async def test_100_ends_under_load(start: Start, figure: Figure) -> None:
    codes: Counter[str] = Counter()
    statuses: Counter[int] = Counter()
    longest = 0.0
    randomly = random.Random(3)
    for number in range(100):
        with ExitStack() as stack:
            workers = "2" if number % 5 == 0 else "1"
            running = stack.enter_context(start("--workers", workers, "--drain-seconds", str(DRAIN_SECONDS)))
            began = time.monotonic()
            seconds = 0.2 + 0.5 * randomly.random()
            codes += await until_it_ends(running, num_connections=4, seconds=seconds)
            longest = max(longest, time.monotonic() - began - seconds)
            statuses[running.process.returncode] += 1
    figure("100 times SIGTERM under load: exit status 0", statuses[0], at_least(100), "ends")
    figure("calls meanwhile with a code that is not retried", _not_retried(codes), at_most(0), "calls")
    figure("the longest end; the grace was 5 s", longest, at_most(DRAIN_SECONDS + 3), "s")


def _not_retried(codes: Counter[str]) -> int:
    return codes.total() - codes["OK"] - codes["UNAVAILABLE"] - codes["RESOURCE_EXHAUSTED"]
