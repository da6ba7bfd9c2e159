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
from collections.abc import AsyncIterator
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
        failures: of requests that ended with an error, in the server's words; they have no latency.
    """

    latencies: list[float]
    seconds: float
    failures: list[str]


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
        began = time.perf_counter()
        await {"closed": self._closed, "open": self._open, "bulk": self._bulk}[load.kind](load, began)
        return Answered(latencies=self._latencies, seconds=time.perf_counter() - began, failures=self._failures)

    async def _closed(self, load: Load, began: float) -> None:
        numbers = itertools.count(1)

        async def client() -> None:
            while _is_open(load, began, next(numbers)):
                await self._ask(time.perf_counter())

        await asyncio.gather(*(client() for _ in range(load.num_clients)))

    async def _open(self, load: Load, began: float) -> None:
        generator, due, asked = random.Random(load.seed), began, []
        while (due := due + generator.expovariate(load.rate)) < began + load.seconds:
            if (ahead := due - time.perf_counter()) > 0:
                await asyncio.sleep(ahead)
            asked.append(asyncio.create_task(self._ask(due)))
        await asyncio.gather(*asked)

    async def _bulk(self, load: Load, began: float) -> None:
        room = asyncio.Semaphore(load.num_clients)
        sent: list[float] = []

        async def requests() -> AsyncIterator[bytes]:
            while _is_open(load, began, len(sent) + 1):
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


def _is_open(load: Load, began: float, number: int) -> bool:
    """Whether the request of this number, from 1, may still be asked."""
    return time.perf_counter() < began + load.seconds and (not load.num_requests or number <= load.num_requests)


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
