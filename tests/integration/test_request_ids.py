"""Tests that every refusal has a request id, which is also logged, even if no request was read."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from attendant.server.auth import open_access
from attendant.server.config import ServerConfig
from attendant.server.grpc.handlers import DETAILS_KEY, REQUEST_ID_KEY, Bounds
from attendant_client.v1 import seq2seq_pb2 as messages
from tests.http_serving import http_served
from tests.serving import PATIENCE_SECONDS, eventually, fake_stepper, gated_stepper, served

GARBAGE = b"\x0a\xff\xff\xff\xff\x0f"
MINE = (("x-request-id", "mine"),)


@pytest.fixture(autouse=True)
def all_that_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "attendant.server")


async def logged(caplog: pytest.LogCaptureFixture, *ids: str) -> list[dict[str, Any]]:
    """Waits until the ends of these requests are logged; returns the records' attributes."""

    def found() -> dict[str, dict[str, Any]]:
        lines = [vars(record) for record in caplog.records if record.message == "request ended"]
        return {line["request_id"]: line for line in lines}

    await eventually(lambda: set(ids) <= set(found()))
    return [found()[request_id] for request_id in ids]


async def id_of(call: Any) -> str:
    """Returns the id in the trailing metadata of a call that failed; checks that its details have the same id."""
    assert await asyncio.wait_for(call.code(), PATIENCE_SECONDS) is not grpc.StatusCode.OK
    metadata = dict(await call.trailing_metadata())
    info = error_details_pb2.RequestInfo()
    assert any(detail.Unpack(info) for detail in status_pb2.Status.FromString(metadata[DETAILS_KEY]).details)
    assert info.request_id == metadata[REQUEST_ID_KEY]
    return str(info.request_id)


async def test_a_refused_stream_has_an_id(caplog: pytest.LogCaptureFixture) -> None:
    async with served(fake_stepper(), bounds=Bounds(max_streams=1, max_watches=1)) as server:
        held = server.stub.GenerateBatch()
        await held.write(messages.GenerateRequest(text="a"))
        await held.read()
        ids = [await id_of(server.stub.GenerateBatch(metadata=metadata)) for metadata in ((), MINE)]
        health = health_pb2_grpc.HealthStub(server.channel)
        held_watch = health.Watch(health_pb2.HealthCheckRequest())
        await held_watch.read()
        ids.append(await id_of(health.Watch(health_pb2.HealthCheckRequest())))
        held.cancel()
        held_watch.cancel()
    lines = await logged(caplog, *ids)
    assert ids[0] and ids[1] == "mine"
    assert [line["method"] for line in lines] == ["GenerateBatch", "GenerateBatch", "Watch"]
    assert {(line["code"], line["client"], line["model"]) for line in lines} == {
        ("RESOURCE_EXHAUSTED", "127.0.0.1", "")
    }


async def test_a_call_without_a_message_keeps_its_id(caplog: pytest.LogCaptureFixture) -> None:
    async with served(fake_stepper(), bounds=Bounds(unread_seconds=0.1)) as server:
        call = server.channel.stream_unary("/attendant.v1.Seq2Seq/Generate")(metadata=MINE)
        assert await id_of(call) == "mine"
        await eventually(lambda: server.sample("attendant_rejected_total", model="", reason="unread") == 1)
    assert (await logged(caplog, "mine"))[0]["code"] == "UNAVAILABLE"


@pytest.mark.parametrize(
    "path",
    ["/attendant.v1.Seq2Seq/Generate", "/inference.GRPCInferenceService/ServerLive", "/grpc.health.v1.Health/Check"],
)
async def test_an_undecodable_message_has_an_id(path: str, caplog: pytest.LogCaptureFixture) -> None:
    async with served(fake_stepper()) as server:
        ids = [await id_of(server.channel.unary_unary(path)(GARBAGE, metadata=metadata)) for metadata in ((), MINE)]
        ids.append(await id_of(server.channel.stream_unary(path)(iter(()))))  # no message at all
        rejected = [
            server.sample("attendant_rejected_total", model=model, reason="undecodable") for model in ("fake", "")
        ]
        assert sum(rejected) == 3 and rejected[0] == (2 if path.endswith("Generate") else 0)
    assert ids[0] and ids[1] == "mine"
    assert {line["code"] for line in await logged(caplog, *ids)} == {"INVALID_ARGUMENT"}
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [(record.message, record.exc_info) for record in warnings] == [("undecodable message", None)] * 2


async def test_a_stream_that_ends_in_a_drain_keeps_its_id(caplog: pytest.LogCaptureFixture) -> None:
    async with served(fake_stepper()) as server:
        call = server.stub.GenerateBatch(metadata=MINE)
        await call.write(messages.GenerateRequest(text="a"))
        await call.read()
        server.catalogue.closing.set()
        assert await id_of(call) == "mine"
    assert (await logged(caplog, "mine"))[0]["code"] == "UNAVAILABLE"


async def test_a_call_without_its_token_has_an_id(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "tokens").write_text("search search-token-0123456789\n")
    access = open_access(ServerConfig(bundles=(), tokens=tmp_path / "tokens", health="closed"))
    async with served(fake_stepper(), access=access) as server:
        check = health_pb2_grpc.HealthStub(server.channel).Check(health_pb2.HealthCheckRequest())
        generate = server.stub.Generate(messages.GenerateRequest(text="a"), metadata=MINE)
        ids = [await id_of(check), await id_of(generate)]
    assert ids[0] and ids[1] == "mine"
    assert {line["code"] for line in await logged(caplog, *ids)} == {"UNAUTHENTICATED"}


async def test_a_request_without_an_id_has_that_of_its_call() -> None:
    async with served(fake_stepper()) as server:
        nameless, other = messages.GenerateRequest(text="a"), messages.GenerateRequest(text="a", request_id="its own")
        assert (await server.stub.Generate(nameless, metadata=MINE)).request_id == "mine"
        assert (await server.stub.Generate(other, metadata=MINE)).request_id == "its own"
        assert await id_of(server.stub.GetModel(messages.GetModelRequest(model="no"), metadata=MINE)) == "mine"
        wrong, long = messages.GenerateRequest(text=""), (("x-request-id", "x" * 500),)
        assert await id_of(server.stub.Generate(wrong, metadata=long)) == "x" * 128


async def test_exceeded_deadlines_over_http_have_an_id(caplog: pytest.LogCaptureFixture) -> None:
    calls = (("/v1/generate", ""), ("/v1/generate", "mine"), ("/v1/generate?stream=1", ""))
    async with served(stepper := gated_stepper()) as server, http_served(server) as web:
        answers = await asyncio.gather(
            *(web.post(path, {"text": "abc", "requestId": own_id}, request_timeout="1.0") for path, own_id in calls)
        )
        for (_, own_id), answer in zip(calls, answers, strict=True):
            request_id = id_in(answer.json)
            assert (answer.status, answer.json["code"]) == (504, "DEADLINE_EXCEEDED")
            assert request_id and own_id in ("", request_id)
        stepper.open()
    lines = await logged(caplog, *(id_in(answer.json) for answer in answers))
    assert {line["code"] for line in lines} == {"DEADLINE_EXCEEDED"}


def id_in(problem: dict[str, Any]) -> str:
    """Returns the id in problem details."""
    kind = "type.googleapis.com/google.rpc.RequestInfo"
    (info,) = [detail for detail in problem["details"] if detail["@type"] == kind]
    return str(info["requestId"])
