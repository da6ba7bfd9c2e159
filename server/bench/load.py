"""The load generator: closed loops, Poisson arrivals, streams and bulk work against one server.

Requests are serialized beforehand and answers are counted, not parsed, so that it takes little of the machine.
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

LIST_SIZE = 256  # Requests in a call of kind "list".
MESSAGE_SIZE = 64  # Requests in a message of kind "bulk-lists".


@dataclass(frozen=True, kw_only=True)
class Load:
    """A load for a server.

    Attributes:
        kind: "closed": each client sends its next request when it has its answer; "stream": the same with streamed
            answers; "list": the same with LIST_SIZE requests per call; "open": Poisson arrivals, which don't wait for
            answers; "bulk": one stream of requests; "bulk-lists": the same with MESSAGE_SIZE requests per message.
        num_clients: of a closed load; requests in flight of bulk work.
        rate: arrivals per second of an open load.
        seconds: after which no request is sent; those in flight are awaited.
        num_requests: after which no request is sent, except in an open load. 0 disables.
        timeout_seconds: the deadline of each unary call. 0 disables.
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
    """The results of a load.

    Attributes:
        latencies: in seconds; in an open load from the planned moment of each request.
        firsts: seconds until the first message of each streamed answer.
        seconds: from the first request to the last answer.
        failures: the server's errors, as "CODE: details". Failed requests have no latency.
        failure_seconds: the duration of each failed call.
    """

    latencies: list[float] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    failure_seconds: list[float] = field(default_factory=list)


async def run_load(target: str, method: str, payloads: "itertools.cycle[bytes]", load: Load) -> Answered:
    """Loads a server. Raises TimeoutError if no server answers at `target`.

    Args:
        method: the full path of the call that fits the kind of load.
        payloads: serialized requests, sent in turn.
    """
    # Retries would hide the server's refusals; for a proxy, a loopback address is its own.
    options = [("grpc.enable_retries", 0), ("grpc.enable_http_proxy", 0)]
    async with grpc.aio.insecure_channel(target, options) as channel:
        await asyncio.wait_for(channel.channel_ready(), 30)
        unary: Any = channel.unary_unary(method)
        streamed: Any = channel.unary_stream(method)
        results, began, numbers = Answered(), time.perf_counter(), itertools.count(1)

        def is_open() -> bool:
            in_time = time.perf_counter() < began + load.seconds
            return in_time and (not load.num_requests or next(numbers) <= load.num_requests)

        async def call(moment: float) -> None:
            called = time.perf_counter()
            try:
                if load.kind == "stream":
                    results.firsts.append(await _first_message(streamed(next(payloads))) - moment)
                elif load.kind == "list":
                    await unary(_request_list(next(payloads) for _ in range(LIST_SIZE)))
                else:
                    await unary(next(payloads), timeout=load.timeout_seconds or None)
            except grpc.aio.AioRpcError as error:
                results.failures.append(f"{error.code().name}: {error.details()}")
                results.failure_seconds.append(time.perf_counter() - called)
            else:
                latency = time.perf_counter() - moment
                results.latencies += [latency] * (LIST_SIZE if load.kind == "list" else 1)

        async def client() -> None:
            while is_open():
                await call(time.perf_counter())

        async def arrivals() -> None:
            generator, due, calls = random.Random(load.seed), began, []
            while (due := due + generator.expovariate(load.rate)) < began + load.seconds:
                if (ahead := due - time.perf_counter()) > 0:
                    await asyncio.sleep(ahead)
                calls.append(asyncio.create_task(call(due)))
            await asyncio.gather(*calls)

        if load.kind == "open":
            await arrivals()
        elif load.kind in ("bulk", "bulk-lists"):
            await _run_bulk(channel.stream_stream(method), payloads, load, is_open, results)
        else:
            await asyncio.gather(*(client() for _ in range(load.num_clients)))
        results.seconds = time.perf_counter() - began
        return results


async def _run_bulk(
    stream: Any, payloads: "itertools.cycle[bytes]", load: Load, is_open: Callable[[], bool], results: Answered
) -> None:
    """Sends requests on one stream. Answers arrive in order of completion: only the sum of the latencies is right."""
    is_listed = load.kind == "bulk-lists"
    message_size = MESSAGE_SIZE if is_listed else 1
    max_in_flight = max(load.num_clients, message_size)
    sent, answered = list[float](), asyncio.Event()

    async def requests() -> AsyncIterator[bytes]:
        while is_open():
            while len(sent) + message_size > len(results.latencies) + max_in_flight:
                answered.clear()
                await answered.wait()
            sent.extend([time.perf_counter()] * message_size)
            yield _request_list(itertools.islice(payloads, message_size)) if is_listed else next(payloads)

    async for answer in stream(requests()):
        now, first = time.perf_counter(), len(results.latencies)
        # The results of a GenerateManyResponse are its fields: they are counted, not parsed.
        num_results = len(UnknownFieldSet(Empty.FromString(answer))) if is_listed else 1
        results.latencies += [now - moment for moment in sent[first : first + num_results]]
        answered.set()


async def _first_message(call: Any) -> float:
    """Reads a stream to its end; returns the time of its first message."""
    events = aiter(call)
    await anext(events)
    moment = time.perf_counter()
    async for _ in events:
        pass
    return moment


def _request_list(requests: Iterable[bytes]) -> bytes:
    return messages.GenerateManyRequest(requests=map(messages.GenerateRequest.FromString, requests)).SerializeToString()
