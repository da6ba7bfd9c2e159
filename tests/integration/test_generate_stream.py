"""Tests of GenerateStream over a real socket: the order of events, and callers that cancel, wait or do not read."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, cast

import pytest

from attendant.runtime.decoding.hypothesis import Progress
from attendant.server.call import RequestRecord
from attendant.server.engine.client import EngineClient
from attendant.server.engine.engine import PROGRESS_SECONDS
from attendant.server.engine.messages import Outcome
from attendant.server.errors import Stalled
from attendant.server.grpc.requests import read_generate
from attendant.server.grpc.service import streamed
from attendant_client.v1 import seq2seq_pb2 as messages
from tests.integration.test_service import long_request
from tests.serving import FakeCall, Served, eventually, fake_stepper, gated_stepper, served

Generate = messages.GenerateRequest
Options = messages.DecodingOptions


async def events_of(call: AsyncIterator[messages.GenerateStreamResponse]) -> list[messages.GenerateStreamResponse]:
    return [event async for event in call]


def ended(server: Served, code: str, model: str = "fake") -> float:
    return server.sample("attendant_requests_total", model=model, method="GenerateStream", code=code)


async def test_tokens_come_as_they_are_decoded_and_the_answer_last() -> None:
    stepper = gated_stepper()
    async with served(stepper) as server:
        request = long_request(request_id="mine", output={"attention": True})
        events = aiter(server.stub.GenerateStream(request))
        tokens = []
        for _ in range(19):
            await asyncio.sleep(2 * PROGRESS_SECONDS)  # steps are so slow that the server holds no tokens back
            stepper.let_one_pass()
            delta = (await anext(events)).delta
            assert len(delta.tokens) == 1 and delta.text == (" " if tokens else "") + delta.tokens[0]
            tokens += delta.tokens
        stepper.open()
        rest = await events_of(events)
        answer = rest[-1].response
        assert tokens + [token for event in rest for token in event.delta.tokens] == list(answer.hypotheses[0].tokens)
        assert answer.request_id == "mine" and answer.hypotheses[0].HasField("attention")
        unary = await server.stub.Generate(request)
        assert unary.hypotheses == answer.hypotheses and unary.source_tokens == answer.source_tokens
        assert ended(server, "OK") == 1


async def test_tokens_that_are_ready_together_share_a_message() -> None:
    stepper = gated_stepper()
    async with served(stepper) as server:
        events = aiter(server.stub.GenerateStream(long_request()))
        stepper.let_one_pass()
        await anext(events)
        stepper.open()
        time.sleep(0.3)  # blocks the event loop for longer than the other steps take
        rest = await events_of(events)
        assert len(rest) <= 4 and sum(len(event.delta.tokens) for event in rest) == 19


def record(server: Served, call: FakeCall) -> RequestRecord:
    return server.log.begin("GenerateStream", call)


async def test_a_caller_that_does_not_read_loses_the_rows_and_gets_an_error() -> None:
    stepper = gated_stepper()
    async with served(stepper) as server:
        parsed = read_generate(long_request(), server.model)
        events = streamed(parsed, call := FakeCall(), record(server, call), unread_seconds=0.05)
        stepper.let_one_pass()
        assert (await anext(events)).delta.tokens
        await asyncio.sleep(0.2)
        stepper.open()
        await eventually(lambda: server.model.runner.num_rows == 0)
        with pytest.raises(Stalled, match=r"no answer was read for 0\.05 s"):
            await anext(events)


async def test_progress_that_an_engine_repeats_is_streamed_once() -> None:
    """Repeats progress, as happens when a request begins again after its engine died."""
    async with served(fake_stepper()) as server:
        runner = RecordingRunner()
        parsed = read_generate(long_request(), replace(server.model, runner=cast(EngineClient, runner)))
        events = streamed(parsed, call := FakeCall(), record(server, call), unread_seconds=60.0)
        following = asyncio.create_task(anext(events))
        await asyncio.sleep(0)
        runner.tell(Progress(0, (4, 5)))
        assert list((await following).delta.tokens) == ["AA", "B"]
        following = asyncio.create_task(anext(events))
        for progress in (Progress(0, (4,)), Progress(1, (5,)), Progress(2, (6,))):
            await asyncio.sleep(0)
            runner.tell(progress)
        assert list((await following).delta.tokens) == ["K"]
        await events.aclose()
        assert runner.outcome.cancelled()


class RecordingRunner:
    """Takes one request, and reports the progress that the test passes to `tell`."""

    def submit_all(self, *request: Any) -> "list[asyncio.Future[Outcome]]":
        *_, (self.tell,) = request
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        return [self.outcome]
