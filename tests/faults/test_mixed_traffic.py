"""Mixed traffic.

Clients make all kinds of calls at once, for a long time: calls that are answered, refused, cancelled, undecodable or
not read. They connect and disconnect while credentials are exchanged. Memory, descriptors and threads must not grow,
and no work may be left over.
"""

import asyncio
import itertools
import random
import secrets
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import psutil
import pytest

from attendant_client.v1 import seq2seq_pb2 as messages
from attendant_client.v1 import seq2seq_pb2_grpc
from benchmarks.harness import tree
from tests.faults.conftest import Figure
from tests.faults.figures import at_least, at_most
from tests.paths import ROOT
from tests.server_process import Running, server

SECONDS = 600.0
"""Duration of the full-size run."""

SAMPLE_SECONDS = 5.0
TIMEOUT_SECONDS = 240.0
"""Timeout of a call that is awaited: more than any call takes on a busy machine."""

WORDS = ("badge", "cabbage", "face", "jab", "phoneme", "attention", "a" * 30)
GAUGES = ("attendant_requests_waiting", "attendant_requests_running", "attendant_rows_running")
BULK_GAUGES = ("attendant_bulk_requests", "attendant_bulk_streams", "attendant_bulk_answers_bytes")
CODES = {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "UNAUTHENTICATED", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED"}
OWN_DOING = {"CANCELLED", "DEADLINE_EXCEEDED", "UNAVAILABLE"}
"""Status codes of calls that the caller cancels, gives no time, or does not read."""


class Sample(NamedTuple):
    """Resources of the server and its workers at one time."""

    mebibytes: float
    descriptors: int
    threads: int


def sample(running: Running) -> Sample:
    descriptors = threads = 0
    for process in tree(running.process.pid):
        with suppress(psutil.Error):
            descriptors += process.num_fds()
            threads += process.num_threads()
    return Sample(running.resident_mebibytes(), descriptors, threads)


@dataclass
class Traffic:
    """Callers of a server, and how their calls ended.

    Attributes:
        tokens: the file of the bearer tokens that the server accepts.
        codes: the number of calls per status code, by kind of call.
    """

    target: str
    tokens: Path
    draw: random.Random = field(default_factory=lambda: random.Random(20))
    codes: dict[str, Counter[str]] = field(default_factory=dict)
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    def __post_init__(self) -> None:
        self.exchange()

    def exchange(self) -> None:
        """Rewrites the file with the callers' token and a new one."""
        self.tokens.write_text(f"callers {self.token}\nothers {secrets.token_urlsafe(24)}\n")

    async def run(self, seconds: float) -> None:
        """Makes calls of all kinds for `seconds`; raises the errors of callers."""
        doings: dict[str, Callable[[Any], Awaitable[str]]] = {
            "generate": self._generate,
            "score": self._score,
            "models": self._models,
            "bulk": self._bulk,
            "wrong": self._wrong,
            "undecodable": self._undecodable,
            "stranger": self._stranger,
            "cancelled": self._cancelled,
            "late": self._late,
            "unread": self._unread,
        }
        until = time.monotonic() + seconds

        async def call(name: str, doing: Callable[[Any], Awaitable[str]]) -> None:
            counted = self.codes.setdefault(name, Counter())
            while time.monotonic() < until:
                async with grpc.aio.insecure_channel(self.target, [("grpc.enable_retries", 0)]) as channel:
                    for _ in range(20):
                        counted[await doing(channel)] += 1
                        await asyncio.sleep(self.draw.random() * 0.1)
                        if time.monotonic() > until:
                            break

        async def exchange() -> None:
            while time.monotonic() < until:
                await asyncio.sleep(min(10.0, seconds / 3))
                self.exchange()

        async with asyncio.TaskGroup() as group:
            group.create_task(exchange())
            for name, doing in doings.items():
                group.create_task(call(name, doing))

    @property
    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.token}"),)

    def _request(self) -> messages.GenerateRequest:
        kind = self.draw.randrange(4)
        request = messages.GenerateRequest(text=self.draw.choice(WORDS), request_id=str(self.draw.random()))
        if kind == 1:
            request.decoding.beam_size = request.decoding.num_hypotheses = self.draw.randint(1, 8)
        elif kind == 2:
            request.decoding.sampling.temperature = 0.5 + self.draw.random()
            request.output.token_log_probs = True
        elif kind == 3:
            request.decoding.length_penalty = self.draw.random()
            request.output.attention = True
        return request

    def _call(self, method: Any, request: Any, seconds: float = TIMEOUT_SECONDS) -> Any:
        return method(request, timeout=seconds, metadata=self._metadata)

    async def _generate(self, channel: Any) -> str:
        return await _code(self._call(_stub(channel).Generate, self._request()))

    async def _score(self, channel: Any) -> str:
        request = messages.ScoreRequest(source_text=self.draw.choice(WORDS), target_text="B AE1")
        return await _code(self._call(_stub(channel).Score, request))

    async def _models(self, channel: Any) -> str:
        request = messages.GetModelRequest(model=self.draw.choice(("", "none")))
        return await _code(self._call(_stub(channel).GetModel, request))

    async def _bulk(self, channel: Any) -> str:
        async def requests() -> AsyncIterator[messages.GenerateRequest]:
            for _ in range(50):
                yield self._request()

        call = self._call(_stub(channel).GenerateBatch, requests())
        assert len([answer async for answer in call]) == 50
        return await _code(call)

    async def _wrong(self, channel: Any) -> str:
        request = self._request()
        request.decoding.beam_size = 100_000
        return await _code(self._call(_stub(channel).Generate, request))

    async def _undecodable(self, channel: Any) -> str:
        call = channel.unary_unary("/attendant.v1.Seq2Seq/Generate")
        return await _code(call(b"\x08" + self.draw.randbytes(9) + b"\xff", metadata=self._metadata))

    async def _stranger(self, channel: Any) -> str:
        metadata = (("authorization", f"Bearer {secrets.token_urlsafe(24)}"),)
        return await _code(_stub(channel).Generate(self._request(), timeout=TIMEOUT_SECONDS, metadata=metadata))

    async def _cancelled(self, channel: Any) -> str:
        call = self._call(_stub(channel).Generate, self._request())
        await asyncio.sleep(self.draw.random() * 0.02)
        call.cancel()
        return await _code(call)

    async def _late(self, channel: Any) -> str:
        return await _code(self._call(_stub(channel).Generate, self._request(), 0.003))

    async def _unread(self, channel: Any) -> str:
        """Opens a bulk stream, reads nothing for a while, and cancels it."""
        requests = itertools.repeat(self._request(), 200)
        call = _stub(channel).GenerateBatch(requests, metadata=self._metadata)
        await asyncio.sleep(1 + self.draw.random())
        call.cancel()
        return await _code(call)


def _stub(channel: Any) -> Any:
    return seq2seq_pb2_grpc.Seq2SeqStub(channel)  # type: ignore[no-untyped-call]


async def _code(call: Any) -> str:
    return str((await call.code()).name)


async def left_over(running: Running) -> dict[str, float]:
    """Waits up to 10 s until all gauges of work are 0; returns those that are not."""
    give_up = time.monotonic() + 10
    while True:
        metrics = await asyncio.to_thread(running.metrics)
        names = tuple(f"{name}{{" for name in (*GAUGES, *BULK_GAUGES))
        gauges = {name: value for name, value in metrics.items() if name.startswith(names) and value}
        if not gauges or time.monotonic() > give_up:
            return gauges
        await asyncio.sleep(0.1)


def check_codes(codes: dict[str, Counter[str]]) -> None:
    for name, counted in codes.items():
        allowed = CODES | OWN_DOING if name in ("cancelled", "late", "unread") else CODES
        assert counted.keys() <= allowed, f"{name}: {counted}"
    assert codes["generate"]["OK"] and codes["bulk"]["OK"] and codes["cancelled"]["CANCELLED"]
    assert codes["undecodable"].keys() == {"INVALID_ARGUMENT"} and codes["stranger"].keys() == {"UNAUTHENTICATED"}


async def test_mixed_traffic_leaves_no_resources_in_use(tiny_bundle_path: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    traffic = Traffic("", tokens)
    with server(str(tiny_bundle_path), f"--tokens={tokens}") as running:
        traffic.target = running.target
        await traffic.run(1.5)
        assert not await left_over(running)
        before = sample(running)
        await traffic.run(2)
        assert not await left_over(running)
        await asyncio.sleep(0.5)  # until the connections are closed
        after = sample(running)
        assert "Traceback" not in running.log()
    check_codes(traffic.codes)
    assert after.descriptors <= before.descriptors + 4 and after.threads <= before.threads + 2


@pytest.mark.reliability
@pytest.mark.timeout(SECONDS + 600)
async def test_ten_minutes_of_mixed_traffic_leak_no_memory(tmp_path: Path, figure: Figure) -> None:
    """Checks that memory grows from the second to the last quarter by no more than it varies within the second."""
    tokens = tmp_path / "tokens"
    traffic = Traffic("", tokens)
    samples: list[Sample] = []
    with server(str(ROOT / "models" / "g2p-en"), f"--tokens={tokens}") as running:
        traffic.target = running.target
        running_traffic = asyncio.create_task(traffic.run(SECONDS))
        while not running_traffic.done():
            await asyncio.wait((running_traffic,), timeout=SAMPLE_SECONDS)
            samples.append(await asyncio.to_thread(sample, running))
        await running_traffic
        left = await left_over(running)
        log = running.log()
    for name, counted in traffic.codes.items():
        print(f"{name}: {dict(counted)}")
    check_codes(traffic.codes)
    quarters = [samples[len(samples) * i // 4 : len(samples) * (i + 1) // 4] for i in range(4)]
    medians = [[statistics.median(values) for values in zip(*quarter, strict=True)] for quarter in quarters]
    print("medians of the quarters (MiB, descriptors, threads):", medians)
    spread = max(point.mebibytes for point in quarters[1]) - min(point.mebibytes for point in quarters[1])
    figure("calls in ten minutes", sum(c.total() for c in traffic.codes.values()), at_least(1), "")
    figure("memory: last quarter over the second", medians[3][0] - medians[1][0], at_most(max(spread, 4.0)), "MiB more")
    figure("descriptors: last quarter over the second", medians[3][1] - medians[1][1], at_most(4), "more")
    figure("threads: last quarter over the second", medians[3][2] - medians[1][2], at_most(2), "more")
    figure("gauges that are not 0 in the end", len(left), at_most(0), "")
    figure("tracebacks in the log", log.count("Traceback"), at_most(0), "")
