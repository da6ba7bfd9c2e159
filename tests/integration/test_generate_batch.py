"""GenerateBatch over a real socket and a fake model: per-item answers, flow control, endings."""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.rpc import code_pb2, error_details_pb2

from attendant.server.servicers.batch import BatchStream
from attendant.server.servicers.seq2seq import SERVICE_NAME
from attendant_client.v1 import seq2seq_pb2 as messages
from attendant_client.v1 import seq2seq_pb2_grpc
from tests.serving import PATIENCE_SECONDS, Served, eventually, fake_bundle, fake_stepper, gated_stepper, served

Generate = messages.GenerateRequest
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


async def test_every_item_is_answered_as_alone() -> None:
    async with served(fake_stepper()) as server:
        requests = numbered(40, decoding=messages.DecodingOptions(beam_size=3, num_hypotheses=2))
        answers = await ask(server, requests)
        assert sorted(int(answer.request_id) for answer in answers) == list(range(40))
        for answer in answers:
            alone = await server.stub.Generate(requests[int(answer.request_id)])
            assert answer.response.request_id == answer.request_id
            assert answer.response.hypotheses == alone.hypotheses
            assert answer.response.source_tokens == alone.source_tokens
        assert server.sample("attendant_requests_total", code="OK", **ITEMS) == 40
        assert server.sample("attendant_request_seconds_count", **ITEMS) == 40
        assert server.sample("grpc_server_handled_total", grpc_code="OK", **RPC) == 1
        assert server.sample("grpc_server_msg_received_total", **RPC) == 40


async def test_the_short_do_not_wait_for_the_long() -> None:
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


async def test_one_answer_per_item_whatever_the_ids() -> None:
    async with served(fake_stepper()) as server:
        requests = [Generate(request_id="same", text="a"), Generate(request_id="same", text="ab"), Generate(text="c")]
        ids = [answer.request_id for answer in await ask(server, requests)]
        assert len(ids) == 3 and ids.count("same") == 2 and all(ids), "where the caller gives none, one is made"
        assert await ask(server, []) == []


async def test_a_wrong_item_is_told_and_the_stream_goes_on() -> None:
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
        assert {one.field for one in detail.field_violations} == {"text", "decoding.beam_size"}
        assert unknown.error.code == code_pb2.NOT_FOUND
        assert unknown.error.message == "model 'other' is not served here; choose from fake"
        assert good.WhichOneof("result") == "response"
        assert server.sample("attendant_requests_total", code="INVALID_ARGUMENT", **ITEMS) == 1
        assert server.sample("attendant_rejected_total", model="", reason="unknown_model") == 1


async def test_a_fault_of_ours_is_one_items(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def broken(request: messages.GenerateRequest, *rest: Any) -> Any:
        raise KeyError("secret words")

    async with served(fake_stepper()) as server:
        with monkeypatch.context() as patch:
            patch.setattr("attendant.server.servicers.results.generate_fields", broken)
            (answer,) = await ask(server, [Generate(text="a")])
        assert answer.error.code == code_pb2.INTERNAL
        detail = error_details_pb2.RequestInfo()
        assert answer.error.details[0].Unpack(detail)
        (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert vars(record)["request_id"] == detail.request_id
        assert "secret" not in str(answer)


async def test_items_of_several_models() -> None:
    async with served(fake_stepper(), fake_bundle("one"), fake_bundle("two")) as server:
        requests = [Generate(request_id=name, model=name, text="a") for name in ("one", "two", "one")]
        answers = await ask(server, requests)
        assert sorted(answer.response.model for answer in answers) == ["one", "one", "two"]


async def test_no_more_is_read_than_there_is_room_for() -> None:
    """The million behind the first few stays with its sender."""
    stepper = gated_stepper()
    async with served(stepper, max_rows=2, max_bulk=5) as server:
        call = server.stub.GenerateBatch(iter(numbered(5000)))
        await stepper.arrival()
        await eventually(lambda: server.sample("grpc_server_msg_received_total", **RPC) == 6)
        await asyncio.sleep(0.05)  # time enough for more to come, if more were let in
        assert server.sample("grpc_server_msg_received_total", **RPC) == 6, "five have room, and one waits for it"
        assert server.model.runner.num_waiting + server.model.runner.num_running == 5
        call.cancel()


@asynccontextmanager
async def not_reading(server: Served, requests: Sequence[messages.GenerateRequest]) -> AsyncIterator[tuple[Any, float]]:
    """A stream whose client reads nothing, on a connection of its own; and how many requests were read from it."""
    # Without its probing a connection buffers 64 KiB, whatever its speed.
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
async def test_who_does_not_read_is_not_read_from(fields: dict[str, Any]) -> None:
    async with served(fake_stepper(), max_bulk=5, max_answer_bytes=100_000) as server:
        async with not_reading(server, numbered(600, **fields)) as (call, num_read):
            assert num_read < 400, "it stands still long before the end"
            held = server.sample("attendant_bulk_answers_bytes", model="")
            assert 40_000 < held <= 50_000, "half of the memory, and the other half is free"
            assert server.sample("attendant_bulk_requests", model="fake") == 0, "the engine's places are free"
            await eventually(lambda: server.sample("attendant_bulk_streams_stalled", model="") == 1)
            assert len(await read(call)) == 600
        assert server.sample("attendant_bulk_answers_bytes", model="") == 0
        await eventually(lambda: server.sample("attendant_bulk_streams", model="") == 0)


async def test_an_id_that_is_too_long_comes_back_cut() -> None:
    async with served(fake_stepper()) as server:
        (answer,) = await ask(server, [Generate(request_id="é" * 100_000, text="a")])
        assert answer.request_id == "é" * 128
        assert answer.error.code == code_pb2.INVALID_ARGUMENT


async def test_one_that_does_not_read_holds_up_nobody_else() -> None:
    async with (
        served(fake_stepper(), max_rows=2, max_bulk=4, max_answer_bytes=100_000) as server,
        not_reading(server, numbered(600, **RIGHT)),
    ):
        calls = [server.stub.GenerateBatch(iter(numbered(50))) for _ in range(10)]
        assert [len(answers) for answers in await asyncio.gather(*map(read, calls))] == [50] * 10


async def test_one_that_does_not_read_is_ended() -> None:
    async with served(fake_stepper(), max_bulk=5, max_answer_bytes=100_000, unread_seconds=0.5) as server:
        async with not_reading(server, numbered(600, **RIGHT)) as (call, _):
            await eventually(lambda: server.sample("attendant_rejected_total", model="fake", reason="stalled") > 0)
            assert server.sample("attendant_bulk_answers_bytes", model="") == 0
            assert server.sample("attendant_bulk_streams", model="") == 0
            answers = []
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async for answer in call:
                    answers.append(answer)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE, "which it is told if it reads on"
            assert (
                caught.value.details() == "no answer was read for 0.5 s; ask for what is unanswered on another stream"
            )
            assert answers
        await eventually(lambda: server.sample("grpc_server_handled_total", grpc_code="UNAVAILABLE", **RPC) == 1)


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
        async with not_reading(server, numbered(600, **RIGHT)):
            assert [timer.cancelled() for timer in timers].count(False) == 1, "an answer is being written"
        await eventually(lambda: server.sample("attendant_bulk_streams", model="") == 0)
        assert all(timer.cancelled() for timer in timers)


async def test_streams_share_the_memory_for_answers() -> None:
    async with served(fake_stepper(), max_rows=2, max_bulk=4) as server:
        calls = [server.stub.GenerateBatch(iter(numbered(30))) for _ in range(3)]
        assert [len(answers) for answers in await asyncio.gather(*map(read, calls))] == [30] * 3


@pytest.mark.parametrize("how", ["cancel", "deadline"])
async def test_a_stream_that_goes_frees_its_rows_within_one_step(how: str) -> None:
    stepper = gated_stepper()
    async with served(stepper, max_rows=4, max_bulk=6) as server:
        timeout = 1.0 if how == "deadline" else None
        call = server.stub.GenerateBatch(iter(numbered(10, decoding=LONG)), timeout=timeout)
        await stepper.arrival()
        await eventually(lambda: server.sample("grpc_server_msg_received_total", **RPC) == 7)
        if how == "cancel":
            call.cancel()
        code = {"cancel": "CANCELLED", "deadline": "DEADLINE_EXCEEDED"}[how]
        assert (await status_of(call)).name == code
        await eventually(lambda: server.sample("attendant_requests_total", code=code, **ITEMS) == 7)
        stepper.let_one_pass()
        await eventually(lambda: server.model.runner.num_running == 0)
        assert stepper.num_steps == 1
        assert server.model.runner.num_rows == server.model.runner.num_waiting == 0
        stepper.open()
        assert len(await ask(server, numbered(20))) == 20, "and its room is there for others"


async def test_draining_answers_what_is_in_and_sends_the_rest_away() -> None:
    # grpc's synchronous client: the asynchronous one says INTERNAL of a write that meets the end (grpc/grpc#36066).
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


async def test_an_idle_stream_does_not_hold_up_a_drain() -> None:
    async with served(fake_stepper()) as server:
        call = server.stub.GenerateBatch()
        await call.write(Generate(text="a"))
        assert (await call.read()).response.hypotheses
        server.catalogue.closing.set()
        assert await asyncio.wait_for(call.code(), PATIENCE_SECONDS) is grpc.StatusCode.UNAVAILABLE


async def test_a_dead_engine_ends_the_stream() -> None:
    stepper = gated_stepper()
    stepper.fail_at_step = 2
    async with served(stepper, max_bulk=5) as server:
        call = server.stub.GenerateBatch(iter(numbered(5, decoding=LONG)))
        await stepper.arrival()
        await eventually(lambda: server.sample("grpc_server_msg_received_total", **RPC) == 5)
        stepper.open()
        assert await status_of(call) is grpc.StatusCode.UNAVAILABLE
        await eventually(lambda: server.sample("attendant_requests_total", code="UNAVAILABLE", **ITEMS) == 5)
        assert server.lifecycle.exit_status == 1


async def test_before_the_bundles_are_checked() -> None:
    async with served(fake_stepper(), ready=False) as server:
        call = server.stub.GenerateBatch()
        await call.write(Generate(text="a", request_id="mine"))
        assert await asyncio.wait_for(call.code(), PATIENCE_SECONDS) is grpc.StatusCode.UNAVAILABLE
        assert dict(await call.trailing_metadata())["attendant-request-id"] == "mine", "whose end ends the stream"
