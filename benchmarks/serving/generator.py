"""The load generator, a process of its own: python -m benchmarks.serving.generator TARGET METHOD PAYLOADS.

Requests are made before, answers are not read, only counted: it takes as little of the machine as it can. Each line of
standard input is a load in JSON, each line of standard output what came of it.
"""

import asyncio
import base64
import itertools
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import grpc


@dataclass(frozen=True, kw_only=True)
class Load:
    """What to ask of a server.

    Attributes:
        kind: "closed": so many clients, each asks again when it was answered; "open": Poisson arrivals at `rate`,
            whatever the answers do; "bulk": one stream with so many requests in flight.
        num_clients: of a closed load; requests in flight of bulk work.
        rate: arrivals per second of an open load.
        seconds: after which nothing new is asked; what is in flight is waited for.
        num_requests: after which likewise nothing new is asked; 0: no such limit.
    """

    kind: str
    seconds: float
    num_clients: int = 1
    rate: float = 0.0
    num_requests: int = 0
    seed: int = 1


@dataclass(frozen=True, kw_only=True)
class Answered:
    """What came of a load.

    Attributes:
        latencies: in seconds; of an open load from the planned moment of each request.
        seconds: from the first request to the last answer.
        num_failed: requests that ended with an error; they have no latency.
        first_failure: in the server's words.
    """

    latencies: list[float]
    seconds: float
    cpu_seconds: float
    num_failed: int
    first_failure: str


class Generator:
    """Asks one server."""

    def __init__(self, channel: grpc.aio.Channel, method: str, payloads: list[bytes]) -> None:
        # Without serializers both sides are bytes.
        self._unary: Any = channel.unary_unary(method)
        self._stream: Any = channel.stream_stream(method)
        self._payloads = itertools.cycle(payloads)
        self._latencies: list[float] = []
        self._failures: list[str] = []

    async def run(self, load: Load) -> Answered:
        self._latencies, self._failures = [], []
        kinds: dict[str, Callable[[Load], Coroutine[Any, Any, None]]] = {
            "closed": self._closed,
            "open": self._open,
            "bulk": self._bulk,
        }
        cpu, began = time.process_time(), time.perf_counter()
        await kinds[load.kind](load)
        return Answered(
            latencies=self._latencies,
            seconds=time.perf_counter() - began,
            cpu_seconds=time.process_time() - cpu,
            num_failed=len(self._failures),
            first_failure=self._failures[0] if self._failures else "",
        )

    async def _closed(self, load: Load) -> None:
        end = time.perf_counter() + load.seconds
        numbers = itertools.count(1)

        async def client() -> None:
            while time.perf_counter() < end and (not load.num_requests or next(numbers) <= load.num_requests):
                await self._ask(time.perf_counter())

        await asyncio.gather(*(client() for _ in range(load.num_clients)))

    async def _open(self, load: Load) -> None:
        generator = random.Random(load.seed)
        began = due = time.perf_counter()
        asked = []
        while (due := due + generator.expovariate(load.rate)) < began + load.seconds:
            if (ahead := due - time.perf_counter()) > 0:
                await asyncio.sleep(ahead)
            asked.append(asyncio.create_task(self._ask(due)))
        await asyncio.gather(*asked)

    async def _bulk(self, load: Load) -> None:
        end = time.perf_counter() + load.seconds
        room = asyncio.Semaphore(load.num_clients)
        sent: list[float] = []

        async def requests() -> AsyncIterator[bytes]:
            while time.perf_counter() < end and (not load.num_requests or len(sent) < load.num_requests):
                await room.acquire()
                sent.append(time.perf_counter())
                yield next(self._payloads)

        # Answers come in the order of completion: the latencies are only right in their sum.
        async for _ in self._stream(requests()):
            self._latencies.append(time.perf_counter() - sent[len(self._latencies)])
            room.release()

    async def _ask(self, moment: float) -> None:
        try:
            await self._unary(next(self._payloads))
        except grpc.aio.AioRpcError as error:
            self._failures.append(f"{error.code().name}: {error.details()}")
        else:
            self._latencies.append(time.perf_counter() - moment)


async def main(target: str, method: str, payloads: str) -> None:
    requests = [base64.b64decode(line) for line in Path(payloads).read_text(encoding="ascii").splitlines()]
    async with grpc.aio.insecure_channel(target) as channel:
        await asyncio.wait_for(channel.channel_ready(), 30)
        generator = Generator(channel, method, requests)
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(asdict(await generator.run(Load(**json.loads(line))))), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
