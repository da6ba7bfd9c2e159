"""The load generator: closed loops, Poisson arrivals, streams and bulk work, asked of a server over gRPC.

Requests are made before, answers are not read, only counted: it takes as little of the machine as it can.
"""

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.empty_pb2 import Empty
from google.protobuf.unknown_fields import UnknownFieldSet

from attendant_client.v1 import seq2seq_pb2 as messages

LIST_SIZE = 256
MESSAGE_SIZE = 64
"""Requests in a message of a bulk stream, where it takes several."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """What to ask of a server.

    Attributes:
        kind: "closed": so many clients, each asks again when it was answered; "list": likewise, LIST_SIZE requests in a
            call; "stream": likewise, each answer streamed; "open": Poisson arrivals at `rate`, whatever the answers do;
            "bulk": one stream with so many requests in flight; "bulk-lists": likewise, MESSAGE_SIZE of them in each
            message.
        num_clients: of a closed load; requests in flight of bulk work.
        rate: arrivals per second of an open load.
        seconds: after which nothing new is asked; what is in flight is waited for.
        num_requests: after which likewise nothing new is asked; 0: no such limit.
        timeout_seconds: the deadline of each unary call; 0: none.
    """

    kind: str
    seconds: float
    num_clients: int = 1
    rate: float = 0.0
    num_requests: int = 0
    seed: int = 1
    timeout_seconds: float = 0.0


@dataclass(kw_only=True)
class Answered:
    """What came of a load.

    Attributes:
        latencies: in seconds; of an open load from the planned moment of each request.
        firsts: until the first message of each streamed answer.
        seconds: from the first request to the last answer.
        failures: of requests that ended with an error, in the server's words; they have no latency.
        failure_seconds: after which each of them did.
    """

    latencies: list[float] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    failure_seconds: list[float] = field(default_factory=list)


async def answered(channel: grpc.aio.Channel, method: str, payloads: "itertools.cycle[bytes]", load: Load) -> Answered:
    """Asks a server; without serializers both sides are bytes."""
    found = Answered()
    began, numbers = time.perf_counter(), itertools.count(1)

    def is_open() -> bool:
        in_time = time.perf_counter() < began + load.seconds
        return in_time and (not load.num_requests or next(numbers) <= load.num_requests)

    async def ask(moment: float) -> None:
        called = time.perf_counter()
        try:
            if load.kind == "stream":
                found.firsts.append(await first_event(answers(next(payloads))) - moment)
            elif load.kind == "list":
                await unary(list_of(next(payloads) for _ in range(LIST_SIZE)))
            else:
                await unary(next(payloads), timeout=load.timeout_seconds or None)
        except grpc.aio.AioRpcError as error:
            found.failures.append(f"{error.code().name}: {error.details()}")
            found.failure_seconds.append(time.perf_counter() - called)
        else:
            latency = time.perf_counter() - moment
            found.latencies += [latency] * (LIST_SIZE if load.kind == "list" else 1)

    async def client() -> None:
        while is_open():
            await ask(time.perf_counter())

    async def arrivals() -> None:
        generator, due, asked = random.Random(load.seed), began, []
        while (due := due + generator.expovariate(load.rate)) < began + load.seconds:
            if (ahead := due - time.perf_counter()) > 0:
                await asyncio.sleep(ahead)
            asked.append(asyncio.create_task(ask(due)))
        await asyncio.gather(*asked)

    unary: Any = channel.unary_unary(method)
    answers: Any = channel.unary_stream(method)
    if load.kind == "open":
        await arrivals()
    elif load.kind in ("bulk", "bulk-lists"):
        await ask_in_bulk(channel.stream_stream(method), payloads, load, is_open, found)
    else:
        await asyncio.gather(*(client() for _ in range(load.num_clients)))
    found.seconds = time.perf_counter() - began
    return found


async def ask_in_bulk(
    stream: Any, payloads: "itertools.cycle[bytes]", load: Load, is_open: Callable[[], bool], found: Answered
) -> None:
    """Asks on one stream, and notes its answers. They come in the order of completion: the latencies are only right in
    their sum.
    """
    is_listed = load.kind == "bulk-lists"
    num_in_message = MESSAGE_SIZE if is_listed else 1
    max_in_flight = max(load.num_clients, num_in_message)
    sent, answered = list[float](), asyncio.Event()

    async def requests() -> AsyncIterator[bytes]:
        while is_open():
            while len(sent) + num_in_message > len(found.latencies) + max_in_flight:
                answered.clear()
                await answered.wait()
            sent.extend([time.perf_counter()] * num_in_message)
            yield list_of(itertools.islice(payloads, num_in_message)) if is_listed else next(payloads)

    async for answer in stream(requests()):
        now, first = time.perf_counter(), len(found.latencies)
        num_results = num_of(answer) if is_listed else 1
        found.latencies += [now - moment for moment in sent[first : first + num_results]]
        answered.set()


async def first_event(call: Any) -> float:
    """Reads a stream to its end; when its first message came."""
    events = aiter(call)
    await anext(events)
    came = time.perf_counter()
    async for _ in events:
        pass
    return came


def list_of(requests: Iterable[bytes]) -> bytes:
    """A GenerateManyRequest of them, in bytes."""
    return messages.GenerateManyRequest(requests=map(messages.GenerateRequest.FromString, requests)).SerializeToString()


def num_of(answer: bytes) -> int:
    """How many results a GenerateManyResponse has: its fields are counted, not read."""
    return len(UnknownFieldSet(Empty.FromString(answer)))


async def asked(target: str, method: str, payloads: "itertools.cycle[bytes]", load: Load) -> Answered:
    """What came of a load on a server. Raises TimeoutError where nobody is there."""
    # What a server refuses is to be seen, not asked again.
    async with grpc.aio.insecure_channel(target, [("grpc.enable_retries", 0)]) as channel:
        await asyncio.wait_for(channel.channel_ready(), 30)
        return await answered(channel, method, payloads, load)
