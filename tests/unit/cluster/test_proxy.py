"""Failures behind a proxy of Ray as statuses, which gRPC's own retries act on; Ray is played by a few lines."""

import json
from typing import Any
from unittest.mock import Mock

import grpc
import pytest

from attendant.server.cluster.proxy import add_seq2seq
from attendant_client.client import SERVICE_CONFIG
from attendant_client.v1 import seq2seq_pb2 as messages
from attendant_client.v1 import seq2seq_pb2_grpc

DEAD = grpc.StatusCode.INTERNAL, "The actor 12ab is unavailable"
OURS = grpc.StatusCode.INTERNAL, "a fault of the server"


class Proxy:
    """Puts its own behaviour in the place of every method's, as Ray's server does, and fails as often as it is told."""

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
async def test_what_ray_could_not_do_is_tried_again(
    failures: tuple[tuple[grpc.StatusCode, str], ...], method: str
) -> None:
    assert await asked(Proxy(*failures), method) == "OK"


@pytest.mark.parametrize("method", ["Generate", "GenerateStream"])
async def test_a_fault_of_ours_is_not(method: str) -> None:
    proxy = Proxy(OURS, OURS)
    assert await asked(proxy, method) == "INTERNAL"
    assert proxy.failures == [OURS]


async def asked(proxy: Proxy, method: str) -> str:
    """How a call of a client that retries ends."""
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
