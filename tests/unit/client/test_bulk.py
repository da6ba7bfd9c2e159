"""Tests of bulk streams, and of results in the order of their inputs."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator

import grpc
import pytest

from attendant_client import (
    AttendantClient,
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    Overloaded,
    Unauthenticated,
    Unavailable,
)
from attendant_client.bulk import WINDOW, Bulk, in_order
from attendant_client.messages import MAX_REQUEST_BYTES
from attendant_client.v1 import seq2seq_pb2 as pb
from tests.unit.client.fake_server import Failure, Served, retry_info


async def test_each_answer_reaches_its_request(client: AttendantClient, server: Served) -> None:
    sources = [f"w{number}" for number in range(300)]
    async with client.bulk() as bulk:
        answers = await asyncio.gather(*(bulk.generate(source, beam_size=2) for source in sources))
    assert [answer.best.text for answer in answers] == [source.upper() for source in sources]
    assert [request.text for request in server.seq2seq.requests] == sources
    assert server.seq2seq.list_sizes == [64, 64, 64, 64, 44], "those that wait go together"
    assert len(server.seq2seq.metadata) == 1, "one stream"
    assert all(request.decoding.beam_size == 2 for request in server.seq2seq.requests)


async def test_a_message_has_no_more_bytes_than_a_server_takes(client: AttendantClient, server: Served) -> None:
    sources = [letter * 30_000 for letter in "abcde"]
    async with client.bulk() as bulk:
        answers = await asyncio.gather(*(bulk.generate(source) for source in sources))
        assert [answer.best.text for answer in answers] == [source.upper() for source in sources]
        assert server.seq2seq.list_sizes == [2, 2, 1]
        room = MAX_REQUEST_BYTES - 20
        assert (await bulk.generate("f" * room)).best.text == "F" * room
        with pytest.raises(InvalidArgument, match=f"at most {MAX_REQUEST_BYTES:,}"):
            await bulk.generate("f" * (MAX_REQUEST_BYTES - 8))


async def test_errors_of_requests_have_their_details(client: AttendantClient, server: Served) -> None:
    server.seq2seq.item_failures.extend(
        [Failure(grpc.StatusCode.NOT_FOUND), Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, details=(retry_info(1.5),))]
    )
    async with client.bulk() as bulk:
        with pytest.raises(NotFound, match="as told"):
            await bulk.generate("a")
        with pytest.raises(Overloaded) as overloaded:
            await bulk.generate("a")
        with pytest.raises(InvalidArgument) as invalid:
            await bulk.generate("bad")
        assert (await bulk.generate("a")).best.text == "A"
    assert overloaded.value.retry_seconds == 1.5
    assert [violation.field for violation in invalid.value.violations] == ["text"]


async def test_a_stream_that_breaks_is_opened_again(client: AttendantClient, server: Served) -> None:
    """The server shuts down after every seventh answer. Each source still gets exactly one answer."""
    server.seq2seq.break_after = 7
    sources = [f"w{number}" for number in range(60)]
    answers = [answer.best.text async for answer in client.generate_many(sources, concurrency=16)]
    assert answers == [source.upper() for source in sources]
    assert len(server.seq2seq.metadata) >= 60 / 7


async def test_requests_wait_until_a_server_has_started_again(
    client: AttendantClient, server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attendant_client.bulk.REOPEN_SECONDS", 0.01)
    server.seq2seq.break_after = 1
    away = Failure(grpc.StatusCode.UNAVAILABLE, "it starts", trailers=(("grpc-retry-pushback-ms", "-1"),))
    async with client.bulk(timeout=20) as bulk:
        assert (await bulk.generate("a")).best.text == "A"
        server.seq2seq.failures.extend([away] * 20)
        assert [answer.best.text for answer in await asyncio.gather(*map(bulk.generate, "bc"))] == ["B", "C"]
        assert not server.seq2seq.failures
    async with client.bulk(timeout=0.2) as bulk:
        assert (await bulk.generate("a")).best.text == "A"
        server.seq2seq.failures.extend([away] * 1000)
        with pytest.raises(Unavailable, match="it starts"):
            await bulk.generate("b")
        num_failures = len(server.seq2seq.failures)
        with pytest.raises(Unavailable, match="it starts"):
            await bulk.generate("b")
        assert len(server.seq2seq.failures) >= num_failures - 4, "the server is not awaited again"


async def test_requests_fail_if_no_stream_can_be_opened(closed_target: str) -> None:
    async with AttendantClient(closed_target) as client, client.bulk() as bulk:
        outcomes = await asyncio.gather(bulk.generate("a"), bulk.generate("b"), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [Unavailable, Unavailable]


async def test_an_error_of_the_stream_fails_all_and_another_may_follow(client: AttendantClient, server: Served) -> None:
    # Two failures: if a write fails before the status is read, the client opens another stream to read it.
    server.seq2seq.failures.extend([Failure(grpc.StatusCode.UNAUTHENTICATED, "no token")] * 2)
    async with client.bulk() as bulk:
        outcomes = await asyncio.gather(*(bulk.generate("a") for _ in range(3)), return_exceptions=True)
        assert len({id(outcome) for outcome in outcomes}) == 3
        assert {str(outcome) for outcome in outcomes} == {"no token"}
        server.seq2seq.failures.clear()
        assert (await bulk.generate("a")).best.text == "A"


class RefusedStream:
    """Imitates a stream of grpc.aio that the server has refused: an early write fails, and hides the status."""

    def __init__(self) -> None:
        self._code = grpc.StatusCode.UNAUTHENTICATED

    async def write(self, request: object) -> None:
        self._code = grpc.StatusCode.INTERNAL
        raise asyncio.InvalidStateError

    async def read(self) -> object:
        await asyncio.sleep(0.05)
        raise grpc.aio.AioRpcError(self._code, grpc.aio.Metadata(), grpc.aio.Metadata(), "as told")

    def cancel(self) -> None: ...


async def test_a_refusal_is_raised_even_if_every_write_fails_first() -> None:
    async with Bulk(RefusedStream, None) as bulk:
        with pytest.raises(Unauthenticated, match="as told"):
            await bulk.generate("a")


class RetriedStream:
    """Imitates a stream of grpc.aio that gRPC retries: before an answer, only its first message is sure to arrive."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[pb.GenerateManyRequest | None] = asyncio.Queue()
        self.written: list[int] = []  # Numbers of requests.
        self._is_answered = False

    async def write(self, message: pb.GenerateManyRequest) -> None:
        self.written.append(len(message.requests))
        if len(self.written) == 1 or self._is_answered:
            self._messages.put_nowait(message)

    async def done_writing(self) -> None:
        self._messages.put_nowait(None)

    async def read(self) -> object:
        message = await self._messages.get()
        if message is None:
            return grpc.aio.EOF
        if not self._is_answered:
            await asyncio.sleep(0.05)
            self._is_answered = True
        answer = pb.GenerateResponse(hypotheses=[pb.Hypothesis(text="A")])
        results = [
            pb.GenerateBatchResponse(request_id=request.request_id, response=answer) for request in message.requests
        ]
        return pb.GenerateManyResponse(results=results)

    def cancel(self) -> None: ...


async def test_no_request_is_lost_while_a_stream_is_retried() -> None:
    async with Bulk(RetriedStream, timeout=2) as bulk:
        answers = await asyncio.gather(*(bulk.generate("a") for _ in range(200)))
        assert [answer.best.text for answer in answers] == ["A"] * 200


async def test_a_list_shares_the_first_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attendant_client.bulk.GATHER_SECONDS", 0.2)
    stream = RetriedStream()
    async with Bulk(lambda: stream, timeout=2) as bulk:
        answers = [answer async for answer in in_order(bulk.generate, ["a"] * 8, concurrency=8)]
    assert (len(answers), stream.written) == (8, [8])


async def test_an_answer_that_is_late_raises_deadline_exceeded(client: AttendantClient) -> None:
    async with client.bulk(timeout=0.05) as bulk:
        with pytest.raises(DeadlineExceeded, match=r"no answer for 0.05 s") as passed:
            await bulk.generate("slow")
        assert passed.value.request_id == "1", "its number on the stream, which the log has"


async def test_the_timeout_limits_each_wait_not_the_whole_stream(client: AttendantClient) -> None:
    async with client.bulk(timeout=0.35) as bulk:
        answers = await asyncio.gather(*(bulk.generate("slow") for _ in range(3)))
        assert len(answers) == 3, "0.6 s in all"


async def test_leaving_cancels_open_requests(client: AttendantClient) -> None:
    task: asyncio.Task[object]
    with pytest.raises(KeyError):
        async with client.bulk() as bulk:
            task = asyncio.create_task(bulk.generate("slow"))
            await asyncio.sleep(0.01)
            raise KeyError
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_request_needs_an_open_stream_and_client(client: AttendantClient) -> None:
    bulk = client.bulk(timeout=None)
    with pytest.raises(RuntimeError, match="async with"):
        await bulk.generate("a")
    async with bulk:
        assert (await bulk.generate("a")).best.text == "A"
    with pytest.raises(RuntimeError, match="async with"):
        await bulk.generate("a")
    async with client.bulk(timeout=None) as bulk, asyncio.timeout(5):
        in_flight = asyncio.create_task(bulk.generate("slow"))
        await asyncio.sleep(0.1)
        await client.close()
        with pytest.raises(asyncio.CancelledError):
            await in_flight


async def test_a_cancelled_request_does_not_disturb_the_others(client: AttendantClient) -> None:
    async with client.bulk() as bulk:
        given_up = asyncio.create_task(bulk.generate("slow"))
        other = asyncio.create_task(bulk.generate("a"))
        await asyncio.sleep(0.01)
        given_up.cancel()
        assert (await other).best.text == "A"


async def test_results_come_in_the_order_of_the_items_with_no_more_calls_at_once_than_allowed() -> None:
    generator, in_flight, most = random.Random(3), 0, 0

    async def double(item: int) -> int:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        await asyncio.sleep(generator.random() / 100)
        in_flight -= 1
        return 2 * item

    assert [result async for result in in_order(double, range(100), concurrency=7)] == [2 * n for n in range(100)]
    assert most == 7


async def test_a_slow_item_lets_a_limited_number_of_others_go_ahead() -> None:
    drawn = 0

    def items() -> Iterator[int]:
        nonlocal drawn
        while drawn < 1000:
            drawn += 1
            yield drawn - 1

    release = asyncio.Event()

    async def call(item: int) -> int:
        if item == 0:
            await release.wait()
        return item

    results = in_order(call, items(), concurrency=2)
    first = asyncio.ensure_future(anext(results))
    await asyncio.sleep(0.05)
    assert 2 < drawn <= 2 * WINDOW + 1
    release.set()
    assert await first == 0
    assert [result async for result in results] == list(range(1, 1000))


async def test_a_result_does_not_wait_for_the_next_item() -> None:
    """A user types a line, and reads the answer before typing the next."""
    answered = asyncio.Event()

    async def items() -> AsyncIterator[int]:
        yield 1
        await asyncio.wait_for(answered.wait(), 5)
        yield 2

    async def call(item: int) -> int:
        return item

    seen = []
    async for result in in_order(call, items(), concurrency=4):
        seen.append(result)
        answered.set()
    assert seen == [1, 2]


async def test_a_slow_iterator_does_not_hold_back_the_results_before_it() -> None:
    drawn = 0

    def items() -> Iterator[int]:
        nonlocal drawn
        for drawn in range(30):
            time.sleep(0.02)
            yield drawn

    async def call(item: int) -> int:
        await asyncio.sleep(0)
        return item

    results = in_order(call, items(), concurrency=100)
    assert await anext(results) == 0 and drawn < 5
    assert [result async for result in results] == list(range(1, 30))


async def test_an_error_of_a_call_ends_it_and_cancels_the_others() -> None:
    cancelled = []

    async def call(item: int) -> int:
        if item == 2:
            await asyncio.sleep(0.01)
            raise RuntimeError("two")
        try:
            await asyncio.sleep(0 if item < 2 else 60)
        except asyncio.CancelledError:
            cancelled.append(item)
            raise
        return item

    seen = []
    with pytest.raises(RuntimeError, match="two"):
        async for result in in_order(call, range(10), concurrency=4):
            seen.append(result)
    assert seen == [0, 1]
    assert cancelled
    assert set(cancelled) <= {3, 4, 5}


async def test_leaving_early_cancels_calls_in_flight() -> None:
    ended = 0

    async def call(item: int) -> int:
        nonlocal ended
        try:
            await asyncio.sleep(60 if item else 0)
        finally:
            ended += 1
        return item

    results = in_order(call, range(100), concurrency=3)
    assert await anext(results) == 0
    await asyncio.sleep(0.01)
    await results.aclose()
    assert ended == 4


@pytest.mark.parametrize("concurrency", [0, 2.5, None, "3"])
async def test_a_concurrency_that_is_no_whole_number_from_1_is_refused(concurrency: object) -> None:
    async def call(item: int) -> int:
        return item

    with pytest.raises(ValueError, match=f"concurrency={concurrency!r}: must be a whole number of at least 1"):
        _ = [result async for result in in_order(call, [1], concurrency=concurrency)]
