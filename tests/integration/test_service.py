"""Tests of the service over a real socket and a fake model: codes, overload, draining, metrics, and freed calls."""

import asyncio
import gc
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from attendant_client.v1 import seq2seq_pb2 as messages
from tests.serving import Served, code_of, eventually, failure, fake_bundle, fake_stepper, gated_stepper, served

Generate = messages.GenerateRequest


def long_request(beam_size: int = 1, **fields: Any) -> messages.GenerateRequest:
    options = messages.DecodingOptions(beam_size=beam_size, min_length=20, max_length=20)
    return Generate(**{"text": "abc", "decoding": options, **fields})


def metadata_of(error: grpc.aio.AioRpcError) -> dict[str, Any]:
    return dict(error.trailing_metadata())


async def test_models_are_listed_and_described() -> None:
    async with served(fake_stepper(), fake_bundle("one"), fake_bundle("two", max_length=7), max_rows=3) as server:
        first, two = (await server.stub.ListModels(messages.ListModelsRequest())).models
        assert (first.name, two.name) == ("one", "two")
        assert await server.stub.GetModel(messages.GetModelRequest(model="two")) == two
        assert (two.version, two.precision, two.provider) == (server.models[1].manifest.version, "fp32", "cpu")
        assert dict(two.architecture) == {
            "cell": "lstm",
            "encoder.num_layers": "1",
            "encoder.bidirectional": "true",
        }
        assert two.limits == messages.Limits(
            max_source_tokens=12,
            max_target_tokens=20,
            max_beam_size=3,
            max_num_hypotheses=3,
            max_source_characters=12 * 4 * (1 + 1),
            max_target_characters=20 * 4 * (2 + 1),
        ), "those in force here"
        assert (first.defaults.max_length, two.defaults.max_length) == (20, 7)
        assert two.defaults.length_penalty == pytest.approx(0.6)
        assert two.evaluation[0].metric == "wer"
        assert two.manifest_json == server.models[1].manifest.to_text()
        assert (two.description, list(two.examples)) == ("", []), "the fake bundle has none"
        assert (await server.stub.Generate(Generate(text="a", model="two"))).model == "two"

        error = await failure(server.stub.Generate(Generate(text="a")))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error.details() == "model is empty, must be one of one, two"
        error = await failure(server.stub.GetModel(messages.GetModelRequest(model="three")))
        assert error.code() is grpc.StatusCode.NOT_FOUND
        assert error.details() == "model 'three' is not served here; choose from one, two"


async def test_a_request_that_is_a_file_is_refused_unparsed() -> None:
    async with served(fake_stepper()) as server:
        error = await failure(server.stub.Generate(Generate(text="a" * 300_000)))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(("num_bytes", "code"), [(15_000, "OK"), (17_000, "RESOURCE_EXHAUSTED")])
async def test_metadata_is_refused_by_its_size_and_not_by_chance(num_bytes: int, code: str) -> None:
    async with served(fake_stepper()) as server:
        metadata = (("x-large", "a" * num_bytes),)
        for _ in range(10):
            assert await code_of(server.stub.Generate(Generate(text="abc"), metadata=metadata)) == code


async def test_the_remedy_of_a_request_that_is_no_message() -> None:
    """Sends bytes as clients do whose protobuf does not check that strings are UTF-8, and no bytes at all."""
    async with served(fake_stepper()) as server:
        latin = Generate(text="abc").SerializeToString().replace(b"b", "é".encode("latin-1"))
        path = "/attendant.v1.Seq2Seq/Generate"
        error = await failure(server.channel.unary_unary(path)(latin))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT and "UTF-8" in error.details()
        error = await failure(server.channel.stream_unary(path)(iter(())))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT and "UTF-8" not in error.details()


async def test_a_drain_ends_calls_after_its_time() -> None:
    stepper = gated_stepper()
    async with served(stepper) as server:
        running = server.stub.Generate(long_request())
        await stepper.arrival()
        draining = asyncio.create_task(server.lifecycle.drain([server.model.runner], 0.01))
        await eventually(lambda: server.model.runner._pool._stopping)
        stepper.let_one_pass()
        await draining
        assert (await failure(running)).code() is grpc.StatusCode.UNAVAILABLE


async def test_an_unexpected_exception_is_an_internal_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> Any:
        raise KeyError("secret words")

    monkeypatch.setattr("attendant.server.grpc.service.generate_fields", broken)
    async with served(fake_stepper()) as server:
        error = await failure(server.stub.Generate(Generate(text="a", request_id="find-me")))
        assert error.code() is grpc.StatusCode.INTERNAL
        assert error.details() == "internal error; the server's log has it under this request's id"
        nameless = await failure(server.stub.Generate(Generate(text="a")))
        labels = {"model": "fake", "method": "Generate"}
        assert server.sample("attendant_requests_total", code="INTERNAL", **labels) == 2
    records = [record for record in caplog.records if record.message == "internal error"]
    assert [record.levelno for record in records] == [logging.ERROR] * 2
    assert [vars(record)["request_id"] for record in records] == [
        "find-me",
        metadata_of(nameless)["attendant-request-id"],
    ]
    assert all(record.exc_info and "secret words" in str(record.exc_info[1]) for record in records)


async def test_a_call_costs_no_more_for_the_methods_that_there_are() -> None:
    """Checks that one task waits for all calls. If methods were registered, each would have a task of its own."""
    async with served(fake_stepper()):
        coroutines = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
        assert len([name for name in coroutines if name.startswith("AioServer._request")]) == 1, coroutines


NUM_CALLS = 4
ANSWERED = messages.GenerateRequest(text="abc")
REFUSED = messages.GenerateRequest(text="abc", decoding=messages.DecodingOptions(beam_size=1000))
UNKNOWN = messages.GenerateRequest(text="abc", model="unknown")
CODES = (
    (ANSWERED, grpc.StatusCode.OK),
    (REFUSED, grpc.StatusCode.INVALID_ARGUMENT),
    (UNKNOWN, grpc.StatusCode.NOT_FOUND),
)
LISTS = (messages.GenerateManyRequest(requests=[ANSWERED, REFUSED, UNKNOWN]), messages.GenerateManyRequest())
TYPES_OF_A_CALL = {"RPCState", "_ServicerContext", "RequestContext"}


@asynccontextmanager
async def collected_types() -> AsyncIterator[Counter[str]]:
    """Disables the collector within the block; then counts the types of the objects that the block left in cycles."""
    counts = Counter[str]()
    gc.collect()
    gc.disable()
    try:
        yield counts
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        counts.update(type(garbage).__name__ for garbage in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def call_all(server: Served) -> None:
    """Calls each method with a request that is answered, one that is refused, and one for an unknown model."""
    for request, code in CODES:
        assert await server.stub.Generate(request).code() == code
        stream = server.stub.GenerateStream(request)
        with suppress(grpc.RpcError):
            while await stream.read() is not grpc.aio.EOF:
                pass
        assert await stream.code() == code
    for requests in LISTS:
        with suppress(grpc.RpcError):
            await server.stub.GenerateMany(requests)


async def test_ended_calls_leave_no_cycle() -> None:
    async with served(fake_stepper()) as server:
        await call_all(server)  # the first calls make objects that stay
        async with collected_types() as counts:
            for _ in range(NUM_CALLS):
                await call_all(server)
    assert not TYPES_OF_A_CALL & counts.keys()


async def test_a_deadline_that_the_caller_sees_first_is_no_cancellation() -> None:
    # About half of the calls are cancelled before the server's own deadline, which starts when they arrive.
    stepper = gated_stepper()
    async with served(stepper) as server:
        calls = [server.stub.Generate(long_request(), timeout=1.0 + number / 100) for number in range(30)]
        await asyncio.gather(*map(failure, calls))
        # The server may refuse a request that still waits when its deadline can't be met any more.
        await server.ended("DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", count=30)
        assert server.num_ended("CANCELLED", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED") == 30
        stepper.open()


async def test_health_lists_the_services_that_it_checks() -> None:
    async with served(fake_stepper()) as server:
        stub = health_pb2_grpc.HealthStub(server.channel)
        statuses = (await stub.List(health_pb2.HealthListRequest())).statuses
        assert statuses.keys() == {"", "attendant.v1.Seq2Seq", "startup", "liveness"}
        for name, status in statuses.items():
            assert status == await stub.Check(health_pb2.HealthCheckRequest(service=name)), name


async def test_grpc_metrics_of_a_stream_that_the_client_ends() -> None:
    async with served(fake_stepper()) as server:
        watch = health_pb2_grpc.HealthStub(server.channel).Watch(health_pb2.HealthCheckRequest())
        await watch.read()
        watch.cancel()
        rpc = {"grpc_type": "server_stream", "grpc_service": "grpc.health.v1.Health", "grpc_method": "Watch"}
        await eventually(lambda: server.sample("grpc_server_handled_total", grpc_code="CANCELLED", **rpc) == 1)
        assert server.sample("grpc_server_started_total", **rpc) == 1
        assert server.sample("grpc_server_handling_seconds_count", **rpc) == 1
