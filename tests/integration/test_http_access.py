"""Who may call over HTTP: the tokens, rates and certificates of gRPC, pages of other origins, names of hosts."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette

from attendant.server.auth import Access, Rates, open_access
from attendant.server.catalogue.models import Catalogue
from attendant.server.config import ServerConfig
from attendant.server.grpc.request_log import RequestLog
from attendant.server.http.app import guard_hosts
from attendant.server.metrics import Metrics
from attendant_client.v1 import seq2seq_pb2 as messages
from tests.http_serving import http_served
from tests.serving import fake_stepper, served

GENERATE = {"text": "abc"}
TOKEN = "search-token-0123456789"


async def test_tokens(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(f"search {TOKEN}\n")
    access = open_access(ServerConfig(bundles=(), tokens=tmp_path / "tokens"))
    async with served(fake_stepper()) as server, http_served(server, access) as web:
        for path in ("/v1/generate", "/v1/generate?stream=1", "/v1/score"):
            answer = await web.post(path, "not even JSON")
            assert (answer.status, answer.json["code"]) == (401, "UNAUTHENTICATED"), "before anything is read"
            assert answer.headers["www-authenticate"] == "Bearer"
        assert (await web.get("/v1/models")).status == 401
        known = {"authorization": f"Bearer {TOKEN}"}
        assert (await web.post("/v1/generate", GENERATE, **known)).status == 200
        assert (await web.get("/v1/models", **known)).status == 200
        for path in ("/", "/openapi.json", "/metrics", "/healthz"):
            assert (await web.get(path)).status == 200
        assert server.sample("attendant_rejected_total", model="fake", reason="unauthenticated") == 4


async def test_rates_are_those_of_grpc() -> None:
    access = replace(Access(), rates=Rates(requests_per_second=1))
    async with served(fake_stepper(), access=access) as server, http_served(server, access) as web:
        assert (await web.post("/v1/generate", GENERATE)).status == 200
        with suppress(grpc.aio.AioRpcError):
            await server.stub.Generate(messages.GenerateRequest(text="abc"))
        answer = await web.post("/v1/generate", GENERATE)
        assert (answer.status, answer.json["code"]) == (429, "RESOURCE_EXHAUSTED")
        assert answer.headers["retry-after"] == "1"
        assert answer.json["details"][0]["@type"] == "type.googleapis.com/google.rpc.RetryInfo"


async def test_another_sites_page_may_ask_where_it_is_named() -> None:
    ask = {"access_control_request_method": "POST", "access_control_request_headers": "content-type"}
    async with served(fake_stepper()) as server:
        async with http_served(server, origins=["https://example.org"]) as web:

            def preflight(origin: str) -> Any:
                return web.ask("OPTIONS", "/v1/generate", origin=origin, **ask)

            allowed = await asyncio.to_thread(preflight, "https://example.org")
            assert allowed.headers["access-control-allow-origin"] == "https://example.org"
            refused = await asyncio.to_thread(preflight, "https://other.org")
            assert "access-control-allow-origin" not in refused.headers
            answer = await web.post("/v1/generate", GENERATE, origin="https://example.org")
            assert answer.headers["access-control-allow-origin"] == "https://example.org"
        async with http_served(server) as closed:
            answer = await closed.post("/v1/generate", GENERATE, origin="https://example.org")
            assert not {name for name in answer.headers if name.startswith("access-control")}


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:9090", 200),
        ("127.0.0.1", 200),
        ("[::1]:9090", 200),
        ("evil.example", 421),
        ("", 421),
        ("localhost.evil", 421),
    ],
)
async def test_names_that_were_made_to_lead_here_are_refused(host: str, status: int) -> None:
    async with served(fake_stepper()) as server, http_served(server) as web:
        for path in ("/", "/v1/models", "/openapi.json", "/metrics", "/healthz", "/readyz", "/nothing"):
            assert (await web.get(path, host=host)).status == (404 if (path, status) == ("/nothing", 200) else status)


async def test_a_check_in_http_1_0_names_no_host() -> None:
    """As a load balancer's; a browser always names one, also in a target that is a URL."""
    async with served(fake_stepper()) as server, http_served(server) as web:
        for host, status in (("", 200), ("http://evil.example", 421), ("http://localhost", 200)):
            reader, writer = await asyncio.open_connection("127.0.0.1", web.port)
            writer.write(f"GET {host}/healthz HTTP/1.0\r\n\r\n".encode())
            assert (await reader.readline()).split()[1] == str(status).encode()
            writer.close()


async def test_on_another_address_any_name_will_do() -> None:
    """There, names lead to the server from outside."""
    app, log = Starlette(), RequestLog(Catalogue(), Metrics(CollectorRegistry()))
    guard_hosts(app, log, "0.0.0.0")
    assert not app.user_middleware
    guard_hosts(app, log, "::1")
    assert app.user_middleware
