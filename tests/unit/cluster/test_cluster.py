"""Tests of Ray Serve: the command without Ray, and Ray's failures as statuses that gRPC retries.

A small fake replaces Ray.
"""

import json
import sys
from typing import Any
from unittest.mock import Mock

import grpc
import pytest

from attendant.runtime.errors import UserError
from attendant.server.cluster.__main__ import OF_REPLICAS, main
from attendant.server.cluster.proxy import add_seq2seq
from attendant.server.config import OPTIONS
from attendant_client.client import SERVICE_CONFIG
from attendant_client.v1 import seq2seq_pb2 as messages
from attendant_client.v1 import seq2seq_pb2_grpc


@pytest.mark.parametrize("arguments", [[], ["train"]])
def test_a_missing_or_unknown_command_names_the_choices(arguments: list[str]) -> None:
    with pytest.raises(UserError, match="must be serve"):
        main(arguments)


def test_a_missing_ray_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match="pip install"):
        main(["serve", "bundle"])


def test_help_shows_the_server_options_that_replicas_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert {option.name for option in OPTIONS} >= OF_REPLICAS
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    output = capsys.readouterr().out
    assert "--max-rows" in output and "--tls-key" not in output
    assert "--traces" not in output and "--connection-seconds" not in output


@pytest.mark.parametrize("value", ["-1", "nan", "soon"])
def test_a_delay_is_a_number_of_seconds(value: str) -> None:
    with pytest.raises(UserError, match=f"--upscale-seconds: invalid number of seconds, 0 or more, value: '{value}'"):
        main(["serve", "bundle", "--upscale-seconds", value])


DEAD = grpc.StatusCode.INTERNAL, "The actor 12ab is unavailable"
OURS = grpc.StatusCode.INTERNAL, "a fault of the server"


class Proxy:
    """A fake of Ray's server: it replaces the behaviour of every method, and returns the given failures first."""

    def __init__(self, *failures: tuple[grpc.StatusCode, str]) -> None:
        self.server = grpc.aio.server()
        self.failures = list(failures)

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        (ours,) = handlers
        methods = ours._method_handlers.items()
        ours._method_handlers = {
            path: method._replace(response_serializer=None, unary_unary=self.answer, unary_stream=self.stream)
            for path, method in methods
        }
        self.server.add_generic_rpc_handlers(handlers)

    async def answer(self, request: Any, context: Any) -> bytes:
        if not self.failures:
            return messages.GenerateResponse(model="g2p").SerializeToString()
        code, details = self.failures.pop(0)
        context.set_code(code)
        context.set_details(details)
        context.set_trailing_metadata((("grpc-retry-pushback-ms", "1"),))
        return b""

    async def stream(self, request: Any, context: Any) -> Any:
        if not self.failures:
            yield messages.GenerateStreamResponse().SerializeToString()
        else:
            await self.answer(request, context)


@pytest.mark.parametrize("failures", [(), (DEAD,), (DEAD, (grpc.StatusCode.RESOURCE_EXHAUSTED, "full"))])
@pytest.mark.parametrize("method", ["Generate", "GenerateStream"])
async def test_failures_of_ray_are_retried(failures: tuple[tuple[grpc.StatusCode, str], ...], method: str) -> None:
    assert await asked(Proxy(*failures), method) == "OK"


@pytest.mark.parametrize("method", ["Generate", "GenerateStream"])
async def test_internal_errors_are_not_retried(method: str) -> None:
    proxy = Proxy(OURS, OURS)
    assert await asked(proxy, method) == "INTERNAL"
    assert proxy.failures == [OURS]


async def asked(proxy: Proxy, method: str) -> str:
    """Calls a method with a client that retries, and returns the status."""
    add_seq2seq(Mock(), proxy)
    port = proxy.server.add_insecure_port("127.0.0.1:0")
    await proxy.server.start()
    options = (("grpc.service_config", json.dumps(SERVICE_CONFIG)),)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        stub = seq2seq_pb2_grpc.Seq2SeqStub(channel)  # type: ignore[no-untyped-call]
        call = getattr(stub, method)(messages.GenerateRequest(text="badge"), timeout=20)
        try:
            if method == "Generate":
                await call
            else:
                assert len([message async for message in call]) == 1
            return "OK"
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)
        finally:
            await proxy.server.stop(None)
