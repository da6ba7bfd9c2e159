"""Tests of lists and streams of requests over a real socket: answers per request, flow control, ends of calls."""

import asyncio
import gc
import itertools
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.rpc import code_pb2, error_details_pb2
from grpc_status import rpc_status

from attendant.server.errors import InvalidArgument
from attendant.server.grpc import lists
from attendant.server.grpc.lists import BatchStream
from attendant.server.grpc.service import SERVICE_NAME
from attendant_client.v1 import seq2seq_pb2 as messages
from attendant_client.v1 import seq2seq_pb2_grpc
from tests.integration.test_service import long_request, metadata_of
from tests.serving import (
    PATIENCE_SECONDS,
    Served,
    eventually,
    failure,
    fake_bundle,
    fake_stepper,
    gated_stepper,
    served,
)

Generate = messages.GenerateRequest
Many = messages.GenerateManyRequest
LONG = messages.DecodingOptions(beam_size=1, min_length=20, max_length=20)
ITEMS = {"model": "fake", "method": "GenerateBatch"}
RPC = {"grpc_type": "bidi_stream", "grpc_service": SERVICE_NAME, "grpc_method": "GenerateBatch"}


def numbered(count: int, **fields: Any) -> list[messages.GenerateRequest]:
    return [Generate(request_id=str(number), text="abcdefgh"[: 1 + number % 8], **fields) for number in range(count)]


async def read(call: Any) -> list[messages.GenerateBatchResponse]:
    async def all_of_it() -> list[messages.GenerateBatchResponse]:
        return [answer async for answer in call]

    return await asyncio.wait_for(all_of_it(), PATIENCE_SECONDS)


async def ask(server: Served, requests: Sequence[messages.GenerateRequest]) -> list[messages.GenerateBatchResponse]:
    return await read(server.stub.GenerateBatch(iter(requests)))


async def status_of(call: Any) -> grpc.StatusCode:
    with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
        await read(call)
    code = await call.code()
    assert isinstance(code, grpc.StatusCode)
    return code


async def test_short_requests_do_not_wait_for_long_ones() -> None:
    stepper = gated_stepper()
    async with served(stepper, max_rows=4) as server:
        requests = [
            Generate(request_id="long", text="abc", decoding=LONG),
            Generate(request_id="short", text="abc", decoding=messages.DecodingOptions(max_length=1)),
        ]
        call = server.stub.GenerateBatch(iter(requests))
        await stepper.arrival()
        await eventually(lambda: server.model.runner.num_waiting + server.model.runner.num_running == 2)
        stepper.open()
        assert [answer.request_id for answer in await read(call)] == ["short", "long"]


async def test_one_answer_per_item_even_if_ids_are_equal() -> None:
    async with served(fake_stepper()) as server:
        requests = [Generate(request_id="same", text="a"), Generate(request_id="same", text="ab"), Generate(text="c")]
        ids = [answer.request_id for answer in await ask(server, requests)]
        assert len(ids) == 3 and ids.count("same") == 2 and all(ids), "where the caller gives none, one is made"
        assert await ask(server, []) == []


async def test_a_wrong_item_gets_an_error_and_the_stream_goes_on() -> None:
    async with served(fake_stepper()) as server:
        requests = [
            Generate(request_id="0", text="", decoding=messages.DecodingOptions(beam_size=99)),
            Generate(request_id="1", text="a", model="other"),
            Generate(request_id="2", text="a"),
        ]
        invalid, unknown, good = sorted(await ask(server, requests), key=lambda answer: answer.request_id)
        assert invalid.error.code == code_pb2.INVALID_ARGUMENT
        detail = error_details_pb2.BadRequest()
        assert invalid.error.details[0].Unpack(detail)
        assert {violation.field for violation in detail.field_violations} == {"text", "decoding.beam_size"}
        assert unknown.error.code == code_pb2.NOT_FOUND
        assert unknown.error.message == "model 'other' is not served here; choose from fake"
        assert good.WhichOneof("result") == "response"
        assert server.sample("attendant_requests_total", code="INVALID_ARGUMENT", **ITEMS) == 1
        assert server.sample("attendant_rejected_total", model="", reason="unknown_model") == 1


async def test_no_more_is_read_than_there_is_room_for() -> None:
    """Checks that the other requests stay with the client."""
    stepper = gated_stepper()
    async with served(stepper, max_rows=2, max_bulk=5) as server:
        call = server.stub.GenerateBatch(iter(numbered(5000)))
        await stepper.arrival()
        await eventually(lambda: server.sample("grpc_server_msg_received_total", **RPC) == 6)
        await asyncio.sleep(0.05)  # enough time for the server to read more, if it did
        assert server.sample("grpc_server_msg_received_total", **RPC) == 6, "five have room, and one waits for it"
        assert server.model.runner.num_waiting + server.model.runner.num_running == 5
        call.cancel()


@asynccontextmanager
async def not_reading(server: Served, requests: Sequence[messages.GenerateRequest]) -> AsyncIterator[tuple[Any, float]]:
    """Yields a stream whose client reads nothing, and the number of requests that the server has read from it."""
    # Without bandwidth probing a connection buffers 64 KiB, at any speed.
    options = [("grpc.http2.bdp_probe", 0)]
    async with grpc.aio.insecure_channel(server.target, options=options) as channel:
        call = seq2seq_pb2_grpc.Seq2SeqStub(channel).GenerateBatch(iter(requests))
        num_read = 0.0
        while (now := server.sample("grpc_server_msg_received_total", **RPC)) != num_read or not num_read:
            num_read = now
            await asyncio.sleep(0.2)
        yield call, num_read


RIGHT = {"decoding": LONG, "output": messages.OutputOptions(attention=True, token_log_probs=True)}
WRONG = {"decoding": messages.DecodingOptions(beam_size=99, length_penalty=99, patience=99, max_length=99)}


@pytest.mark.parametrize("fields", [RIGHT, WRONG], ids=["right", "wrong"])
async def test_a_caller_that_does_not_read_is_not_read_from(fields: dict[str, Any]) -> None:
    async with served(fake_stepper(), max_bulk=5, max_answer_bytes=100_000) as server:
        async with not_reading(server, numbered(300, **fields)) as (call, num_read):
            assert num_read < 200, "the server stops reading long before the end"
            held = server.sample("attendant_bulk_answers_bytes", model="")
            assert 40_000 < held <= 50_000, "half of the memory, and the other half is free"
            assert server.sample("attendant_bulk_requests", model="fake") == 0, "the engine's places are free"
            await eventually(lambda: server.sample("attendant_bulk_streams_stalled", model="") == 1)
            assert len(await read(call)) == 300
        assert server.sample("attendant_bulk_answers_bytes", model="") == 0
        await eventually(lambda: server.sample("attendant_bulk_streams", model="") == 0)


async def test_a_refusal_that_is_not_read_holds_nothing_of_its_request() -> None:
    """The traceback of an error would hold the message, of any size."""
    async with (
        served(fake_stepper(), max_bulk=5, max_answer_bytes=100_000) as server,
        not_reading(server, numbered(300, **WRONG)),
    ):
        refusals = [each for each in gc.get_objects() if isinstance(each, InvalidArgument)]
        assert refusals and all(refusal.__traceback__ is None for refusal in refusals)


async def test_an_id_that_is_too_long_comes_back_cut() -> None:
    async with served(fake_stepper()) as server:
        (answer,) = await ask(server, [Generate(request_id="é" * 100_000, text="a")])
        assert answer.request_id == "é" * 128
        assert answer.error.code == code_pb2.INVALID_ARGUMENT


async def test_a_caller_that_does_not_read_holds_up_no_other() -> None:
    async with (
        served(fake_stepper(), max_rows=2, max_bulk=4, max_answer_bytes=100_000) as server,
        not_reading(server, numbered(300, **RIGHT)),
    ):
        calls = [server.stub.GenerateBatch(iter(numbered(20))) for _ in range(10)]
        assert [len(answers) for answers in await asyncio.gather(*map(read, calls))] == [20] * 10


async def test_a_caller_that_does_not_read_is_ended() -> None:
    async with served(fake_stepper(), max_bulk=5, max_answer_bytes=100_000, unread_seconds=0.5) as server:
        async with not_reading(server, numbered(300, **RIGHT)) as (call, _):
            await eventually(lambda: server.sample("attendant_rejected_total", model="fake", reason="stalled") > 0)
            assert server.sample("attendant_bulk_answers_bytes", model="") == 0
            assert server.sample("attendant_bulk_streams", model="") == 0
            answers = []
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async for answer in call:
                    answers.append(answer)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE, "a client that reads on gets the reason"
            assert (
                caught.value.details() == "no answer was read for 0.5 s; send the unanswered requests on another stream"
            )
            assert answers
        await eventually(lambda: server.sample("grpc_server_handled_total", grpc_code="UNAVAILABLE", **RPC) == 1)
        counted = [server.sample("attendant_requests_total", code=code, **ITEMS) for code in ("OK", "UNAVAILABLE")]
        assert sum(counted) == server.sample("grpc_server_msg_received_total", **RPC), "each that was read, once"


async def test_a_client_that_goes_during_a_write_leaves_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, timers = asyncio.get_running_loop(), list[asyncio.TimerHandle]()
    call_later = loop.call_later

    def recorded(delay: float, callback: Any, *arguments: Any, **options: Any) -> asyncio.TimerHandle:
        timer = call_later(delay, callback, *arguments, **options)
        if getattr(callback, "__func__", None) is BatchStream._give_up:
            timers.append(timer)
        return timer

    monkeypatch.setattr(loop, "call_later", recorded)
    async with served(fake_stepper(), max_bulk=5, max_answer_bytes=100_000) as server:
        async with not_reading(server, numbered(300, **RIGHT)):
            assert [timer.cancelled() for timer in timers].count(False) == 1, "an answer is being written"
        await eventually(lambda: server.sample("attendant_bulk_streams", model="") == 0)
        assert all(timer.cancelled() for timer in timers)


async def test_draining_answers_accepted_requests_and_refuses_the_rest() -> None:
    # grpc's asynchronous client would report INTERNAL if a write meets the end of the call (grpc/grpc#36066).
    def ask_without_end(target: str) -> tuple[list[messages.GenerateBatchResponse], Any]:
        answers = []
        with grpc.insecure_channel(target) as channel:
            requests = (Generate(request_id=str(number), text="a") for number in itertools.count())
            try:
                for answer in seq2seq_pb2_grpc.Seq2SeqStub(channel).GenerateBatch(requests):
                    answers.append(answer)
            except grpc.RpcError as error:
                return answers, error
        raise AssertionError("the stream ended well")

    stepper = gated_stepper()
    async with served(stepper, max_bulk=5) as server:
        asking = asyncio.create_task(asyncio.to_thread(ask_without_end, server.target))
        await stepper.arrival()
        await eventually(lambda: server.model.runner.num_waiting + server.model.runner.num_running == 5)
        server.catalogue.closing.set()
        draining = asyncio.create_task(server.lifecycle.drain([server.model.runner], 20))
        await asyncio.sleep(0)
        stepper.open()
        answers, error = await asking
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert "shutting down" in error.details()
        assert sorted(answer.request_id for answer in answers) == ["0", "1", "2", "3", "4"]
        assert all(answer.WhichOneof("result") == "response" for answer in answers)
        await draining
        assert server.sample("attendant_bulk_requests", model="fake") == 0
        assert server.sample("attendant_bulk_answers_bytes", model="") == 0


async def test_a_dead_engine_ends_the_stream() -> None:
    stepper = gated_stepper()
    stepper.fail_at_step = 2
    async with served(stepper, max_bulk=5) as server:
        call = server.stub.GenerateBatch()
        for request in numbered(5, decoding=LONG):
            await call.write(request)  # the client does not half-close: it waits for the answers
        await stepper.arrival()
        await eventually(lambda: server.sample("grpc_server_msg_received_total", **RPC) == 5)
        stepper.open()
        assert await status_of(call) is grpc.StatusCode.UNAVAILABLE
        await eventually(lambda: server.sample("attendant_requests_total", code="UNAVAILABLE", **ITEMS) == 5)
        assert server.lifecycle.exit_status == 1


LISTED = {"model": "fake", "method": "GenerateBatches"}
LISTS_RPC = RPC | {"grpc_method": "GenerateBatches"}


async def ask_in_lists(server: Served, lists: Sequence[Many]) -> list[list[messages.GenerateBatchResponse]]:
    """Sends lists of requests; returns the results in each answer."""
    return [list(answer.results) for answer in await read(server.stub.GenerateBatches(iter(lists)))]


def in_lists(requests: Sequence[messages.GenerateRequest], size: int) -> list[Many]:
    return [Many(requests=requests[first : first + size]) for first in range(0, len(requests), size)]


@pytest.mark.parametrize("size", [0, 33], ids=["one by one", "in lists"])
async def test_every_request_is_answered_as_alone(size: int) -> None:
    async with served(fake_stepper()) as server:
        requests = numbered(100, decoding=messages.DecodingOptions(beam_size=3, num_hypotheses=2))
        answers = await (ask_in_lists(server, in_lists(requests, size)) if size else ask(server, requests))
        results = list(itertools.chain(*answers)) if size else answers
        assert sorted(int(result.request_id) for result in results) == list(range(100))
        for result in results:
            alone = await server.stub.Generate(requests[int(result.request_id)])
            assert result.response.request_id == result.request_id
            assert result.response.hypotheses == alone.hypotheses
            assert result.response.source_tokens == alone.source_tokens
        assert not size or max(map(len, answers)) > 1, "several in an answer"
        labels, rpc = (LISTED, LISTS_RPC) if size else (ITEMS, RPC)
        assert server.sample("attendant_requests_total", code="OK", **labels) == 100
        assert server.sample("attendant_request_seconds_count", **labels) == 100
        assert server.sample("grpc_server_handled_total", grpc_code="OK", **rpc) == 1
        assert server.sample("grpc_server_msg_received_total", **rpc) == (4 if size else 100)
        await eventually(lambda: server.sample("attendant_bulk_requests", model="fake") == 0)
        assert server.sample("attendant_bulk_answers_bytes", model="") == 0


@pytest.mark.parametrize(
    "limits", [{"max_bulk": 5, "max_rows": 2}, {"max_answer_bytes": 30_000}], ids=["places", "memory"]
)
async def test_a_list_may_have_more_requests_than_there_is_room_for(limits: dict[str, int]) -> None:
    async with served(fake_stepper(), **limits) as server:
        answers = await ask_in_lists(server, in_lists(numbered(120, decoding=LONG), 60))
        assert sorted(int(result.request_id) for answer in answers for result in answer) == list(range(120))
        assert server.sample("attendant_bulk_requests", model="fake") == 0


async def test_lists_of_a_wrong_length_get_errors_and_the_stream_goes_on() -> None:
    async with served(fake_stepper()) as server:
        lists = [Many(), *in_lists(numbered(257), 257), Many(requests=numbered(2))]
        results = [result for answer in await ask_in_lists(server, lists) for result in answer]
        errors = {
            (result.request_id, result.error.code, result.error.message)
            for result in results
            if result.HasField("error")
        }
        message = "requests is {} items long, must be 1 to 256 items long"
        assert errors == {("", code_pb2.INVALID_ARGUMENT, message.format(number)) for number in (0, 257)}
        assert sorted(result.request_id for result in results if result.HasField("response")) == ["0", "1"]


@pytest.mark.parametrize("function", ["read_generate", "generate_fields"])
async def test_an_internal_error_fails_only_its_request(
    function: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    original = getattr(lists, function)

    def broken(of: Any, *rest: Any) -> Any:
        if of.request_id == "two-bad":
            raise KeyError("secret words")
        return original(of, *rest)

    monkeypatch.setattr(lists, function, broken)
    async with served(fake_stepper(), fake_bundle("one"), fake_bundle("two")) as server:
        names = ("one-a", "two-bad", "two-b", "one-c")
        requests = [Generate(request_id=name, model=name.partition("-")[0], text="a") for name in names]
        (results,) = [[result for answer in await ask_in_lists(server, [Many(requests=requests)]) for result in answer]]
    models = {result.request_id: result.response.model or result.error.code for result in results}
    assert models == {"one-a": "one", "two-bad": code_pb2.INTERNAL, "two-b": "two", "one-c": "one"}
    (error,) = [result.error for result in results if result.HasField("error")]
    detail = error_details_pb2.RequestInfo()
    assert error.details[0].Unpack(detail) and detail.request_id == "two-bad" and "secret" not in str(error)
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert vars(record)["request_id"] == "two-bad"


async def test_answers_that_were_made_for_a_client_that_has_gone_hold_no_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    places, blocked = itertools.count(), asyncio.Event()

    async def written(num_cells: int, make: Any) -> Any:
        if next(places):
            blocked.set()
            await asyncio.Event().wait()
        await eventually(lambda: server.sample("attendant_bulk_requests", model="fake") == 0)  # all have ended
        return make()

    monkeypatch.setattr(lists, "written", written)
    async with served(fake_stepper()) as server:
        call = server.stub.GenerateBatches()
        await call.write(Many(requests=numbered(4)))
        await blocked.wait()
        call.cancel()
        await eventually(lambda: server.sample("attendant_bulk_streams", model="") == 0)
        assert server.sample("attendant_bulk_answers_bytes", model="") == 0


async def test_an_undecodable_list_gets_an_error_and_the_stream_goes_on() -> None:
    async with served(fake_stepper()) as server, grpc.aio.insecure_channel(server.target) as channel:
        stream = channel.stream_stream(f"/{SERVICE_NAME}/GenerateBatches")
        raw_lists = [b"\x0a\xff", Many(requests=numbered(2)).SerializeToString()]
        answers = [messages.GenerateManyResponse.FromString(message) async for message in stream(iter(raw_lists))]
        results = [result for answer in answers for result in answer.results]
        assert sorted((result.request_id, result.error.code) for result in results) == [
            ("", code_pb2.INVALID_ARGUMENT), ("0", 0), ("1", 0)
        ]  # fmt: skip


def ended(server: Served, code: str, model: str = "fake") -> float:
    return server.sample("attendant_requests_total", model=model, method="GenerateMany", code=code)


@pytest.mark.parametrize("num", [0, 257])
async def test_a_list_that_is_too_long_is_refused(num: int) -> None:
    async with served(fake_stepper()) as server:
        error = await failure(server.stub.GenerateMany(Many(requests=[Generate(text="a")] * num)))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error.details() == f"requests is {num} items long, must be 1 to 256 items long"
        assert ended(server, "INVALID_ARGUMENT") == 1


async def test_a_list_is_admitted_as_a_whole_or_not_at_all() -> None:
    async with served(gated_stepper(), max_rows=2, max_waiting=10) as server:
        error = await failure(server.stub.GenerateMany(Many(requests=[long_request()] * 20)))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        status = rpc_status.from_call(error)
        assert status is not None and any(
            detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR) for detail in status.details
        )
        assert int(metadata_of(error)["grpc-retry-pushback-ms"]) > 0
        await eventually(lambda: server.model.runner.num_waiting == 0)
        assert ended(server, "RESOURCE_EXHAUSTED") == 20
        assert server.sample("attendant_rejected_total", model="fake", reason="queue_full") == 20


async def test_a_list_whose_caller_goes_while_an_answer_is_written_ends_all_its_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writing = asyncio.Event()

    async def written(num_cells: int, make: Any) -> Any:
        writing.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(lists, "written", written)
    async with served(fake_stepper()) as server:
        call = server.stub.GenerateMany(Many(requests=numbered(2)))
        await writing.wait()
        call.cancel()
        await eventually(lambda: ended(server, "CANCELLED") == 2)
        assert server.model.leases.num_held == 0, "else a version that is replaced never ends"


async def test_answers_that_could_take_too_much_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attendant.server.grpc.requests.MAX_ANSWER_BYTES", 1 << 20)
    async with served(fake_stepper()) as server:
        draws = Generate(text="abc", decoding={"num_hypotheses": 4, "sampling": {}}, output={"attention": True})
        error = await failure(server.stub.GenerateMany(Many(requests=[draws] * 200)))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert str(error.details()).startswith("requests is 200 items long, whose answers may take 2 MiB")
        assert ended(server, "INVALID_ARGUMENT") == 200
