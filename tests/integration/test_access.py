"""Tests of access over real sockets: tokens, certificates and rates of both ports, origins of pages, host names."""

import asyncio
import logging
import socket
import ssl
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_status import rpc_status
from prometheus_client import CollectorRegistry, generate_latest
from starlette.applications import Starlette

from attendant.server.auth import Access, Rates, open_access
from attendant.server.call import RequestLog
from attendant.server.catalogue import Catalogue
from attendant.server.config import ServerConfig
from attendant.server.http.app import guard_hosts, http_app
from attendant.server.http.port import http_server
from attendant.server.inference.v2 import open_inference_pb2 as wire
from attendant.server.metrics import Metrics
from attendant_client.v1 import seq2seq_pb2 as messages
from attendant_client.v1 import seq2seq_pb2_grpc
from tests.certificates import Authority, new_authority, put
from tests.http_serving import Http, http_served
from tests.inference import infer_body, infer_request, inference_stub
from tests.serving import Served, code_of, eventually, failure, fake_stepper, gated_stepper, served

SEARCH, MAIL, ADMIN = "search-token-0123456789", "mail-token-0123456789", "admin-token-0123456789"
REQUEST = messages.GenerateRequest(text="abc")
REQUEST_BYTES = REQUEST.ByteSize()


def bearer(token: str) -> dict[str, Any]:
    return {"metadata": (("authorization", f"Bearer {token}"),), "timeout": 20}


def authorization(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def options(**fields: Any) -> ServerConfig:
    return ServerConfig(bundles=(), **fields)


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"search {SEARCH}\nmail {MAIL}\n")
    return path


def change(access: Access) -> None:
    """Checks the files twice, as the server does in two seconds."""
    for reloaded in (access.certificates, access.tokens) * 2:
        if reloaded is not None:
            reloaded.look()


def access_to(tokens: Path, tmp_path: Path, **more: Any) -> Access:
    """Returns access that requires tokens of clients and of an administrator."""
    (tmp_path / "admins").write_text(f"operator {ADMIN}\n")
    return open_access(options(tokens=tokens, admin_tokens=tmp_path / "admins", **more))


PATHS_OF_NO_SERVICE = (
    "/",
    "/a/b/c/d",
    "/attendant.v1.Seq2Seq/",
    "/attendant.v1.Seq2Seq/Generate?stream=1",
    "//attendant.v1.Seq2Seq/Generate",
    "/Secret%0A\x1b[31m/Secret",
    "/Secret/Sécret",
)
DENIED, ALL, KNOWN = "UNAUTHENTICATED", ("OK",) * 3, ("UNAUTHENTICATED", "OK", "OK")
ADMINISTRATORS = "UNAUTHENTICATED", "PERMISSION_DENIED", "NOT_FOUND"


class TestTokens:
    async def test_grpc_methods_require_tokens(
        self, tokens: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with served(fake_stepper(), access=access_to(tokens, tmp_path)) as server:
            ours, theirs = server.stub, inference_stub(server.channel)
            load = wire.RepositoryModelLoadRequest(model_name="fake")
            score = messages.ScoreRequest(source_text="abc", target_text="AA")
            for method, request, codes in (
                (ours.Generate, REQUEST, KNOWN),
                (ours.Score, score, KNOWN),
                (ours.ListModels, messages.ListModelsRequest(), KNOWN),
                (ours.GetModel, messages.GetModelRequest(), KNOWN),
                (ours.GenerateMany, messages.GenerateManyRequest(requests=[REQUEST]), KNOWN),
                (theirs.ServerLive, wire.ServerLiveRequest(), ALL),
                (theirs.ServerReady, wire.ServerReadyRequest(), ALL),
                (theirs.ModelReady, wire.ModelReadyRequest(), KNOWN),
                (theirs.ServerMetadata, wire.ServerMetadataRequest(), KNOWN),
                (theirs.ModelMetadata, wire.ModelMetadataRequest(), KNOWN),
                (theirs.ModelInfer, infer_request("abc"), KNOWN),
                (theirs.RepositoryIndex, wire.RepositoryIndexRequest(), KNOWN),
                (theirs.RepositoryModelLoad, load, ADMINISTRATORS),
                (theirs.RepositoryModelUnload, wire.RepositoryModelUnloadRequest(), ADMINISTRATORS),
            ):
                callers = ({}, bearer(SEARCH), bearer(ADMIN))
                assert [await code_of(method(request, **caller)) for caller in callers] == list(codes)
            error = await failure(ours.Generate(REQUEST, **bearer(SEARCH + "x")))
            assert error.code().name == DENIED and SEARCH not in (error.details() or "")
            for stream in (ours.GenerateStream(REQUEST), ours.GenerateBatch()):
                assert (await stream.code()).name == DENIED
            labels = {"model": "fake", "method": "Generate", "code": DENIED}
            assert server.sample("attendant_requests_total", **labels) == 2
            assert server.sample("attendant_rejected_total", model="fake", reason="unauthenticated") == 15
        facts = [vars(record) for record in caplog.records if record.name == "audit"]
        assert {(fact["client"], fact["method"], fact["code"]) for fact in facts} >= {
            ("operator", "RepositoryModelLoad", "NOT_FOUND"),
            ("search", "RepositoryModelLoad", "PERMISSION_DENIED"),
            ("127.0.0.1", "Generate", "UNAUTHENTICATED"),
        }

    async def test_http_paths_require_tokens(
        self, tokens: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        load = "/v2/repository/models/nobody/load"
        paths: tuple[tuple[str, Any, tuple[int, int, int]], ...] = (
            ("/", None, (200, 200, 200)),
            ("/openapi.json", None, (200, 200, 200)),
            ("/metrics", None, (200, 200, 200)),
            ("/healthz", None, (200, 200, 200)),
            ("/v1/models", None, (401, 200, 200)),
            ("/v1/generate", {"text": "abc"}, (401, 200, 200)),
            ("/v1/generate?stream=1", "not even JSON", (401, 400, 400)),
            ("/v1/score", "not even JSON", (401, 400, 400)),
            ("/v2/health/live", None, (200, 200, 200)),
            ("/v2/health/ready", None, (200, 200, 200)),
            ("/v2", None, (401, 200, 200)),
            ("/v2/models/fake", None, (401, 200, 200)),
            ("/v2/models/fake/ready", None, (401, 200, 200)),
            ("/v2/models/fake/infer", infer_body("abc"), (401, 200, 200)),
            (load, {}, (401, 403, 404)),
            (load, {"parameters": {"config": "x"}}, (401, 403, 400)),
        )
        async with served(fake_stepper()) as server:
            async with http_served(server, access_to(tokens, tmp_path)) as web:
                for path, body, statuses in paths:
                    for headers, status in zip(({}, *map(authorization, (SEARCH, ADMIN))), statuses, strict=True):
                        answer = await (web.get(path, **headers) if body is None else web.post(path, body, **headers))
                        assert (path, answer.status) == (path, status)
                        assert status != 401 or answer.headers["www-authenticate"] == "Bearer"
            assert server.sample("attendant_rejected_total", model="fake", reason="unauthenticated") == 8
            facts = [vars(record) for record in caplog.records if record.name == "audit"]
            assert [(fact["code"], fact["model"]) for fact in facts if fact["method"] == "RepositoryModelLoad"] == [
                (code, "nobody")
                for last in ("NOT_FOUND", "INVALID_ARGUMENT")
                for code in ("UNAUTHENTICATED", "PERMISSION_DENIED", last)
            ]
            async with http_served(server, access_to(tokens, tmp_path, health="closed")) as web:
                assert (await web.get("/v2/health/live")).status == 401
                assert (await web.get("/v2/health/live", **authorization(SEARCH))).status == 200

    async def test_health_is_open_and_reflection_closed_by_default(self, tokens: Path) -> None:
        for fields, health, reflected in (
            (dict[str, Any](), "OK", "OK"),
            ({"tokens": tokens}, "OK", "UNAUTHENTICATED"),
            ({"tokens": tokens, "reflection": "open"}, "OK", "OK"),
            ({"tokens": tokens, "health": "closed", "reflection": "off"}, "UNAUTHENTICATED", "UNIMPLEMENTED"),
        ):
            async with served(fake_stepper(), access=open_access(options(**fields))) as server:
                assert await health_code(server) == health
                assert await watch_code(server) == health
                known = bearer(SEARCH)
                assert await health_code(server, **known) == await watch_code(server, **known) == "OK"
                for version in ("v1", "v1alpha"):
                    assert await reflection_code(server, version) == reflected
                    allowed = await reflection_code(server, version, **known) == "OK"
                    assert allowed == (reflected != "UNIMPLEMENTED")

    async def test_an_unknown_path_is_refused_before_the_token_is_checked(
        self, tokens: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG, "attendant")
        num_refused = 0
        async with served(fake_stepper(), access=open_access(options(tokens=tokens))) as server:
            for path in PATHS_OF_NO_SERVICE:
                for known in ({}, bearer(SEARCH)):
                    error = await failure(server.channel.unary_unary(path)(b"Secret", **known))
                    assert error.code() is grpc.StatusCode.UNIMPLEMENTED, path
                    assert "attendant-request-id" in dict(error.trailing_metadata() or ())
                # Sends no message: gRPC reports INTERNAL if a write meets the end of its call (grpc/grpc#36066).
                assert await server.channel.stream_stream(path)().code() is grpc.StatusCode.UNIMPLEMENTED
                num_refused += 3
            refused = {"model": "", "reason": "unknown_method"}
            await eventually(lambda: server.sample("attendant_rejected_total", **refused) == num_refused)
        assert len(caplog.records) == num_refused
        for record in caplog.records:
            assert (record.getMessage(), record.exc_info) == ("request ended", None)
            # From Python 3.12 on, a record has its asyncio task's name, which contains the path. No format writes it.
            assert "ecret" not in str({key: value for key, value in vars(record).items() if key != "taskName"})

    async def test_a_path_that_is_not_text_does_not_disturb_other_calls(
        self, tokens: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Sends a path that ends grpcio's server. A new server listens on the port before a client gives up."""
        stepper = gated_stepper()
        async with served(stepper, access=open_access(options(tokens=tokens))) as server:
            begun = asyncio.ensure_future(server.stub.Generate(REQUEST, **bearer(SEARCH)))
            await stepper.arrival()
            for number in range(1, 4):
                async with grpc.aio.insecure_channel(server.target) as attacker:
                    assert await code_of(attacker.unary_unary(b"/Secret\xff/x")(b"", timeout=20)) != "OK"
                async with grpc.aio.insecure_channel(server.target) as channel:
                    stub, request = seq2seq_pb2_grpc.Seq2SeqStub(channel), messages.ListModelsRequest()
                    # The server that ends may still cancel a call that arrives at this moment.
                    for _ in range(20):
                        code = await code_of(stub.ListModels(request, wait_for_ready=True, **bearer(SEARCH)))
                        if code == "OK":
                            break
                    assert code == "OK"
                assert server.sample("attendant_rejected_total", model="", reason="unknown_method") == number
            stepper.open()
            assert (await begun).hypotheses
        assert "Secret" not in "".join(record.getMessage() for record in caplog.records)

    async def test_a_stream_ends_when_its_token_is_taken_away(self, tokens: Path) -> None:
        access = open_access(options(tokens=tokens))
        async with served(fake_stepper(), access=access) as server:
            stream = server.stub.GenerateBatch(**bearer(MAIL))
            await stream.write(REQUEST)
            assert (await stream.read()).response.hypotheses
            tokens.write_text(f"search {SEARCH}\nshop shop-token-0123456789\n")
            change(access)
            await stream.write(REQUEST)
            assert await code_of(stream.read()) == "UNAUTHENTICATED"
            assert await code_of(server.stub.Generate(REQUEST, **bearer(MAIL))) == "UNAUTHENTICATED"
            assert await code_of(server.stub.Generate(REQUEST, **bearer("shop-token-0123456789"))) == "OK"


async def health_code(server: Served, **call: Any) -> str:
    stub = health_pb2_grpc.HealthStub(server.channel)
    return await code_of(stub.Check(health_pb2.HealthCheckRequest(), **call))


async def watch_code(server: Served, **call: Any) -> str:
    stub = health_pb2_grpc.HealthStub(server.channel)
    watching = stub.Watch(health_pb2.HealthCheckRequest(), **call)
    try:
        return await code_of(watching.read())
    finally:
        watching.cancel()


async def reflection_code(server: Served, version: str = "v1", **call: Any) -> str:
    reflect = server.channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
    )
    answers = reflect(iter([reflection_pb2.ServerReflectionRequest(list_services="")]), **call)
    return await code_of(answers.read())


class TestCertificates:
    @pytest.mark.parametrize("door", ["grpc", "http"])
    async def test_certificates_of_both_sides_are_checked_and_reloaded(self, door: str, tmp_path: Path) -> None:
        names = "authority", "newer", "clients", "strangers"
        authority, newer, clients, strangers = (new_authority(tmp_path / name) for name in names)
        certificate, key, client_ca = (tmp_path / name for name in ("tls.crt", "tls.key", "ca.pem"))
        put(authority.issue("server"), (certificate, key))
        client_ca.write_bytes(clients.certificate.read_bytes())
        access = open_access(options(tls_certificate=certificate, tls_key=key, tls_client_ca=client_ca))
        async with served(fake_stepper(), access=access) as server, http_served(server, access) as unencrypted:

            async def is_answered(trusted: Authority, client: Authority | None = None) -> bool:
                shown = None if client is None else client.issue("shop", "shop.example")
                if door == "grpc":
                    return await ask(server.target, trusted, shown) == "OK"
                try:
                    web = replace(unencrypted, tls=client_context(trusted, shown))
                    return (await web.post("/v1/generate", {"text": "abc"})).status == 200
                except OSError:  # includes ssl's errors
                    return False

            assert await is_answered(authority, clients)
            assert not await is_answered(authority), "no certificate of its own"
            assert not await is_answered(authority, strangers)
            assert not await is_answered(newer, clients), "the server's is not trusted"
            assert await code_of(server.stub.Generate(REQUEST)) == "UNAVAILABLE"
            with pytest.raises(OSError):
                await unencrypted.get("/healthz")
            put((newer.issue("server")[0], newer.issue("other")[1]), (certificate, key))
            change(access)
            assert await is_answered(authority, clients), "a key that does not belong to the new certificate"
            put(newer.issue("server"), (certificate, key))
            client_ca.write_bytes(strangers.certificate.read_bytes())
            change(access)
            assert await is_answered(newer, strangers)
            assert not await is_answered(newer, clients) and not await is_answered(authority, strangers)


def channel_to(target: str, authority: Authority, client: tuple[Path, Path] | None = None) -> grpc.aio.Channel:
    certificate, key = (None, None) if client is None else (file.read_bytes() for file in client)
    return grpc.aio.secure_channel(
        target, grpc.ssl_channel_credentials(authority.certificate.read_bytes(), key, certificate)
    )


def client_context(trusted: Authority, shown: tuple[Path, Path] | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(trusted.certificate))
    if shown is not None:
        context.load_cert_chain(*shown)
    return context


async def ask(target: str, authority: Authority, client: tuple[Path, Path] | None = None) -> str:
    """Returns the status of a call on a new connection."""
    async with channel_to(target, authority, client) as channel:
        return await code_of(seq2seq_pb2_grpc.Seq2SeqStub(channel).Generate(REQUEST, timeout=20))


class TestWhoCalls:
    async def test_clients_are_named_by_address_token_or_certificate(
        self, tokens: Path, authority: Authority, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Checks that the log names the same client for gRPC and for HTTP."""
        caplog.set_level(logging.DEBUG, "attendant.server")
        certificate, key = authority.issue("server")
        tls = {"tls_certificate": certificate, "tls_key": key, "tls_client_ca": authority.certificate}
        shown = authority.issue("shop, of O'Neill + Söhne", "shop.example")
        metrics = ""
        for access, token, client in (
            (Access(), "", "127.0.0.1"),
            (open_access(options(tokens=tokens)), SEARCH, "search"),
            (open_access(options(**tls)), "", "shop, of O'Neill + Söhne"),
            (open_access(options(**tls, tokens=tokens)), MAIL, "mail"),
        ):
            caplog.clear()
            encrypted = access.certificates is not None
            context = client_context(authority, shown) if encrypted else None
            async with served(fake_stepper(), access=access) as server, http_served(server, access, tls=context) as web:
                headers = authorization(token) if token else {}
                assert (await web.post("/v1/generate", {"text": "abc"}, **headers)).status == 200
                channel = channel_to(server.target, authority, shown) if encrypted else server.channel
                async with channel:
                    stub = seq2seq_pb2_grpc.Seq2SeqStub(channel)
                    call = bearer(token) if token else {}
                    await stub.Generate(REQUEST, **call)
                    assert [answer async for answer in stub.GenerateBatch(iter([REQUEST]), **call)]
                metrics += generate_latest(server.metrics.registry).decode()
            names = [vars(record)["client"] for record in caplog.records if record.message == "request ended"]
            assert names == [client] * 3
        for name in ("127.0.0.1", "mail", "shop"):
            assert name not in metrics, "labels come from closed sets"


class TestRates:
    async def test_a_request_above_the_rate_is_refused_with_a_retry_delay(self) -> None:
        access = replace(Access(), rates=Rates(requests_per_second=2))
        async with served(fake_stepper(), access=access) as server:
            codes = [await code_of(server.stub.Generate(REQUEST)) for _ in range(4)]
            assert codes[:2] == ["OK", "OK"] and codes[3] == "RESOURCE_EXHAUSTED"
            error = await failure(server.stub.Score(messages.ScoreRequest()))
            assert "the client is above its rate" in (error.details() or "")
            detail, _ = rpc_status.from_call(error).details  # type: ignore[arg-type, union-attr]  # the id is the other
            retry = error_details_pb2.RetryInfo()
            assert detail.Unpack(retry)
            assert 0 < retry.retry_delay.ToMilliseconds() <= 500
            pushback = dict(error.trailing_metadata())["grpc-retry-pushback-ms"]
            assert 0 < int(pushback) <= 500
            assert server.sample("attendant_rejected_total", model="fake", reason="rate_limited") >= 2
            assert await health_code(server) == "OK", "health checks count for no client"

    async def test_each_client_has_its_own_rate_in_bytes(self, tokens: Path) -> None:
        access = replace(open_access(options(tokens=tokens)), rates=Rates(bytes_per_second=0.1 * REQUEST_BYTES))
        async with served(fake_stepper(), access=access) as server:
            for token, code in ((SEARCH, "OK"), (SEARCH, "RESOURCE_EXHAUSTED"), (MAIL, "OK")):
                assert await code_of(server.stub.Generate(REQUEST, **bearer(token))) == code

    async def test_both_ports_share_the_rate(self) -> None:
        access = replace(Access(), rates=Rates(requests_per_second=1))
        async with served(fake_stepper(), access=access) as server, http_served(server, access) as web:
            assert (await web.post("/v1/generate", {"text": "abc"})).status == 200
            await code_of(server.stub.Generate(REQUEST))
            answer = await web.post("/v1/generate", {"text": "abc"})
            assert (answer.status, answer.json["code"]) == (429, "RESOURCE_EXHAUSTED")
            assert answer.headers["retry-after"] == "1"
            assert answer.json["details"][0]["@type"] == "type.googleapis.com/google.rpc.RetryInfo"

    async def test_lists_and_tensors_count_as_their_requests(self) -> None:
        for path, body in (
            ("/v1/generate_many", {"texts": ["a"] * 5}),
            ("/v2/models/fake/infer", infer_body(*"aaaaa")),
            ("", None),
        ):
            access = Access(rates=Rates(2.0, clock=lambda: 100.0))
            async with served(fake_stepper(), access=access) as server, http_served(server, access) as web:
                if path:
                    assert [(await web.post(path, body)).status for _ in range(2)] == [200, 429]
                else:
                    stub = inference_stub(server.channel)
                    codes = [await code_of(stub.ModelInfer(infer_request(*"aaaaa"), timeout=20)) for _ in range(2)]
                    assert codes == ["OK", "RESOURCE_EXHAUSTED"]

    async def test_a_stream_is_read_at_the_clients_rate(self) -> None:
        access = replace(Access(), rates=Rates(requests_per_second=20))
        async with served(fake_stepper(), access=access) as server:
            began = time.monotonic()
            answers = [answer async for answer in server.stub.GenerateBatch(iter([REQUEST] * 30))]
            assert [answer.WhichOneof("result") for answer in answers] == ["response"] * 30, "none is refused"
            assert time.monotonic() - began > 0.3, "21 at once, then 20 a second"


async def test_pages_of_allowed_origins_may_call_the_api() -> None:
    headers = "content-type, content-encoding, authorization, request-timeout, x-request-id"
    ask = {"access_control_request_method": "POST", "access_control_request_headers": headers}
    async with served(fake_stepper()) as server:
        async with http_served(server, origins=["https://example.org"]) as web:

            def preflight(origin: str) -> Any:
                return web.ask("OPTIONS", "/v1/generate", origin=origin, **ask)

            allowed = await asyncio.to_thread(preflight, "https://example.org")
            assert allowed.status == 200
            assert allowed.headers["access-control-allow-origin"] == "https://example.org"
            refused = await asyncio.to_thread(preflight, "https://other.org")
            assert "access-control-allow-origin" not in refused.headers
            answer = await web.post("/v1/generate", {"text": "abc"}, origin="https://example.org")
            assert answer.headers["access-control-allow-origin"] == "https://example.org"
            for path, verbs in (("/v1/generate", {"POST"}), ("/v1/models", {"GET", "HEAD"})):
                other = await asyncio.to_thread(web.ask, "OPTIONS", path, {"text": "abc"}, origin="https://example.org")
                assert (other.status, set(other.headers["allow"].split(", "))) == (405, verbs), "it is no preflight"
                assert other.headers["access-control-allow-origin"] == "https://example.org"
            unknown = await web.post("/v1/none", {}, origin="https://example.org")
            assert (unknown.status, unknown.headers["access-control-allow-origin"]) == (404, "https://example.org")
        async with http_served(server) as closed:
            answer = await closed.post("/v1/generate", {"text": "abc"}, origin="https://example.org")
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
@pytest.mark.asyncio(loop_scope="module")
async def test_host_names_of_dns_rebinding_are_refused(web: Http, host: str, status: int) -> None:
    for path in ("/", "/v1/models", "/openapi.json", "/metrics", "/healthz", "/readyz", "/nothing"):
        assert (await web.get(path, host=host)).status == (404 if (path, status) == ("/nothing", 200) else status)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_check_in_http_1_0_names_no_host(web: Http) -> None:
    """Sends no host, as load balancers do. A browser always sends one, also if the request's target is a URL."""
    for host, status in (("", 200), ("http://evil.example", 421), ("http://localhost", 200)):
        reader, writer = await asyncio.open_connection("127.0.0.1", web.port)
        writer.write(f"GET {host}/healthz HTTP/1.0\r\n\r\n".encode())
        assert (await reader.readline()).split()[1] == str(status).encode()
        writer.close()


async def test_any_host_name_is_accepted_on_other_addresses() -> None:
    """Checks that any host is accepted on an address that is not loopback, since any DNS name may lead there."""
    app, log = Starlette(), RequestLog(Catalogue(), Metrics(CollectorRegistry()))
    guard_hosts(app, log, "0.0.0.0")
    assert not app.user_middleware
    guard_hosts(app, log, "::1")
    assert app.user_middleware


async def test_the_name_that_an_operator_gave_the_loopback_address_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses 127.0.1.1, the address that Debian gives to the machine's name."""
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [(0, 0, 0, "", ("127.0.1.1", 0))])
    app = http_app(CollectorRegistry(), lambda: True)
    guard_hosts(app, RequestLog(Catalogue(), Metrics(CollectorRegistry())), "Machine")
    monkeypatch.undo()
    async with http_server(app, "127.0.0.1", 0) as port:
        for host, status in (("machine:9090", 200), ("evil.example", 421)):
            assert (await Http(port).get("/healthz", host=host)).status == status
