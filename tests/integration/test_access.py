"""Certificates, tokens and rates over real sockets."""

import asyncio
import logging
import ssl
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_status import rpc_status
from prometheus_client import generate_latest

from attendant.server.auth import Access, Rates, open_access
from attendant.server.config import ServerConfig
from attendant.server.inference.v2 import open_inference_pb2 as wire
from attendant.server.inference.v2 import open_inference_pb2_grpc
from attendant_client.v1 import seq2seq_pb2 as messages
from attendant_client.v1 import seq2seq_pb2_grpc
from tests.certificates import Authority, new_authority, put
from tests.http_serving import http_served
from tests.serving import Served, fake_stepper, gated_stepper, served

SEARCH, MAIL = "search-token-0123456789", "mail-token-0123456789"
REQUEST = messages.GenerateRequest(text="abc")
REQUEST_BYTES = REQUEST.ByteSize()


def bearer(token: str) -> dict[str, Any]:
    return {"metadata": (("authorization", f"Bearer {token}"),), "timeout": 20}


async def code_of(call: Any) -> str:
    """How a call ends."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return str(error.code().name)
    return "OK"


def options(**given: Any) -> ServerConfig:
    return ServerConfig(bundles=(), **given)


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"search {SEARCH}\nmail {MAIL}\n")
    return path


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return new_authority(tmp_path / "authority")


def change(access: Access) -> None:
    """Two looks at the files, as the server takes them in two seconds."""
    for reloaded in (access.certificates, access.tokens) * 2:
        if reloaded is not None:
            reloaded.look()


class TestTokens:
    async def test_a_call_needs_one_that_is_known(self, tokens: Path) -> None:
        async with served(fake_stepper(), access=open_access(options(tokens=tokens))) as server:
            assert (await server.stub.Generate(REQUEST, **bearer(SEARCH))).hypotheses
            for call in (
                server.stub.Generate(REQUEST),
                server.stub.Generate(REQUEST, **bearer(SEARCH + "x")),
                server.stub.Score(messages.ScoreRequest(), **bearer("x")),
                server.stub.ListModels(messages.ListModelsRequest()),
                server.stub.GetModel(messages.GetModelRequest()),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
                assert SEARCH not in (caught.value.details() or "")
            for stream in (server.stub.GenerateStream(REQUEST), server.stub.GenerateBatch(iter([REQUEST]))):
                assert await code_of(stream.read()) == "UNAUTHENTICATED"
            labels = {"model": "fake", "method": "Generate"}
            assert server.sample("attendant_requests_total", **labels, code="UNAUTHENTICATED") == 2
            assert server.sample("attendant_rejected_total", model="fake", reason="unauthenticated") == 7

    async def test_health_is_open_and_reflection_closed_unless_it_is_said_otherwise(self, tokens: Path) -> None:
        for said, health, reflected in (
            (dict[str, Any](), "OK", "OK"),
            ({"tokens": tokens}, "OK", "UNAUTHENTICATED"),
            ({"tokens": tokens, "reflection": "open"}, "OK", "OK"),
            ({"tokens": tokens, "health": "closed", "reflection": "off"}, "UNAUTHENTICATED", "UNIMPLEMENTED"),
        ):
            async with served(fake_stepper(), access=open_access(options(**said))) as server:
                assert await health_code(server) == health
                assert await watch_code(server) == health
                known = bearer(SEARCH)
                assert await health_code(server, **known) == await watch_code(server, **known) == "OK"
                for version in ("v1", "v1alpha"):
                    assert await reflection_code(server, version) == reflected
                    allowed = await reflection_code(server, version, **known) == "OK"
                    assert allowed == (reflected != "UNIMPLEMENTED")

    @pytest.mark.parametrize(
        "path",
        [
            "/",
            "/a/b/c/d",
            "/attendant.v1.Seq2Seq/",
            "/attendant.v1.Seq2Seq/Generate?stream=1",
            "//attendant.v1.Seq2Seq/Generate",
            "/Secret%0A\x1b[31m/Secret",
            "/Secret/Sécret",
        ],
    )
    async def test_a_path_that_no_service_has_is_refused_before_anything_is_asked(
        self, path: str, tokens: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG, "attendant")
        async with served(fake_stepper(), access=open_access(options(tokens=tokens))) as server:
            for known in ({}, bearer(SEARCH)):
                call = server.channel.unary_unary(path)(b"Secret", **known)
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call
                assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
                assert "attendant-request-id" in dict(caught.value.trailing_metadata() or ())
            assert await code_of(server.channel.stream_stream(path)(iter([b"Secret"])).read()) == "UNIMPLEMENTED"
            assert server.sample("attendant_rejected_total", model="", reason="unknown_method") == 3
        assert len(caplog.records) == 3
        for record in caplog.records:
            assert (record.getMessage(), record.exc_info) == ("request ended", None)
            # From Python 3.12 on, a record names its asyncio task, which grpc names by the path; no format writes that.
            assert "ecret" not in str({key: value for key, value in vars(record).items() if key != "taskName"})

    async def test_a_path_that_is_not_even_text_ends_nobodys_call(
        self, tokens: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """grpcio's server ends by it; another one listens at the port before a client has given up."""
        stepper = gated_stepper()
        async with served(stepper, access=open_access(options(tokens=tokens))) as server:
            begun = asyncio.ensure_future(server.stub.Generate(REQUEST, **bearer(SEARCH)))
            await stepper.arrival()
            for number in range(1, 4):
                async with grpc.aio.insecure_channel(server.target) as attacker:
                    assert await code_of(attacker.unary_unary(b"/Secret\xff/x")(b"", timeout=20)) != "OK"
                async with grpc.aio.insecure_channel(server.target) as channel:
                    stub, request = seq2seq_pb2_grpc.Seq2SeqStub(channel), messages.ListModelsRequest()
                    # A call of the very moment may still be cancelled by the server that ends.
                    for _ in range(20):
                        code = await code_of(stub.ListModels(request, wait_for_ready=True, **bearer(SEARCH)))
                        if code == "OK":
                            break
                    assert code == "OK"
                assert server.sample("attendant_rejected_total", model="", reason="unknown_method") == number
            stepper.open()
            assert (await begun).hypotheses
        assert "Secret" not in "".join(record.getMessage() for record in caplog.records)

    async def test_the_open_inference_protocol_is_guarded_likewise(
        self, tokens: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        admins = tmp_path / "admins"
        admins.write_text("operator admin-token-0123456789\n")
        access = open_access(options(tokens=tokens, admin_tokens=admins))
        infer = wire.ModelInferRequest(
            inputs=[{"name": "text", "datatype": "BYTES", "shape": [1], "contents": {"bytes_contents": [b"abc"]}}]
        )
        known, admin = bearer(SEARCH), bearer("admin-token-0123456789")
        async with served(fake_stepper(), access=access) as server:
            stub = open_inference_pb2_grpc.GRPCInferenceServiceStub(server.channel)
            load = wire.RepositoryModelLoadRequest(model_name="fake")
            for call, nobody, client, administrator in (
                (partial(stub.ServerLive, wire.ServerLiveRequest()), "OK", "OK", "OK"),
                (partial(stub.ServerReady, wire.ServerReadyRequest()), "OK", "OK", "OK"),
                (partial(stub.ModelReady, wire.ModelReadyRequest()), "UNAUTHENTICATED", "OK", "OK"),
                (partial(stub.ServerMetadata, wire.ServerMetadataRequest()), "UNAUTHENTICATED", "OK", "OK"),
                (partial(stub.ModelMetadata, wire.ModelMetadataRequest()), "UNAUTHENTICATED", "OK", "OK"),
                (partial(stub.ModelInfer, infer), "UNAUTHENTICATED", "OK", "OK"),
                (partial(stub.RepositoryIndex, wire.RepositoryIndexRequest()), "UNAUTHENTICATED", "OK", "OK"),
                (partial(stub.RepositoryModelLoad, load), "UNAUTHENTICATED", "PERMISSION_DENIED", "NOT_FOUND"),
                (
                    partial(stub.RepositoryModelUnload, wire.RepositoryModelUnloadRequest()),
                    "UNAUTHENTICATED",
                    "PERMISSION_DENIED",
                    "NOT_FOUND",
                ),
                (partial(server.stub.Generate, REQUEST), "UNAUTHENTICATED", "OK", "OK"),
            ):
                found = [await code_of(call(**how)) for how in ({}, known, admin)]
                assert found == [nobody, client, administrator]
        facts = [vars(record) for record in caplog.records if record.name == "audit"]
        assert {(one["client"], one["method"], one["code"]) for one in facts} >= {
            ("operator", "RepositoryModelLoad", "NOT_FOUND"),
            ("search", "RepositoryModelLoad", "PERMISSION_DENIED"),
            ("127.0.0.1", "Generate", "UNAUTHENTICATED"),
        }
        async with served(fake_stepper()) as server:
            stub = open_inference_pb2_grpc.GRPCInferenceServiceStub(server.channel)
            unload = wire.RepositoryModelUnloadRequest(model_name="fake")
            assert await code_of(stub.RepositoryModelUnload(unload)) == "PERMISSION_DENIED"
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.RepositoryModelLoad(load, **admin)
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
            assert caught.value.details() == "nobody may do this here: the server was started without --admin-tokens"

    async def test_a_tensor_counts_for_as_many_requests_as_it_has_texts(self) -> None:
        infer = wire.ModelInferRequest(
            inputs=[{"name": "text", "datatype": "BYTES", "shape": [5], "contents": {"bytes_contents": [b"a"] * 5}}]
        )
        access = Access(rates=Rates(2.0, clock=lambda: 100.0))
        async with served(fake_stepper(), access=access) as server:
            stub = open_inference_pb2_grpc.GRPCInferenceServiceStub(server.channel)
            assert await code_of(stub.ModelInfer(infer, timeout=20)) == "OK"
            assert await code_of(stub.ModelInfer(infer, timeout=20)) == "RESOURCE_EXHAUSTED"

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

    async def test_the_server_looks_by_itself(self, tokens: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("attendant.server.auth.POLL_SECONDS", 0.01)
        access = open_access(options(tokens=tokens))
        with access.following_files():
            tokens.write_text(f"shop {SEARCH}\n")
            assert access.tokens is not None
            give_up = time.monotonic() + 20
            while access.tokens.value.name_of(f"Bearer {SEARCH}") != "shop":
                assert time.monotonic() < give_up
                await asyncio.sleep(0.01)


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
    asked = reflect(iter([reflection_pb2.ServerReflectionRequest(list_services="")]), **call)
    return await code_of(asked.read())


class TestCertificates:
    @pytest.mark.parametrize("door", ["grpc", "http"])
    async def test_those_of_both_sides_are_checked_and_follow_their_files(self, door: str, tmp_path: Path) -> None:
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
                except OSError:  # ssl's errors among them
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

    async def test_a_connection_outlives_the_certificate_that_it_began_with(
        self, authority: Authority, tmp_path: Path
    ) -> None:
        certificate, key = authority.issue("server")
        access = open_access(options(tls_certificate=certificate, tls_key=key))
        async with (
            served(fake_stepper(), access=access) as server,
            channel_to(server.target, authority) as channel,
        ):
            stub = seq2seq_pb2_grpc.Seq2SeqStub(channel)
            assert await code_of(stub.Generate(REQUEST)) == "OK"
            put(new_authority(tmp_path / "newer").issue("server"), (certificate, key))
            change(access)
            assert await code_of(stub.Generate(REQUEST)) == "OK"


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
    """How a call on a connection of its own ends."""
    async with channel_to(target, authority, client) as channel:
        return await code_of(seq2seq_pb2_grpc.Seq2SeqStub(channel).Generate(REQUEST, timeout=20))


class TestWhoCalls:
    async def test_by_address_token_or_certificate(
        self, tokens: Path, authority: Authority, caplog: pytest.LogCaptureFixture
    ) -> None:
        """By gRPC and by HTTP alike."""
        caplog.set_level(logging.DEBUG, "attendant.server.grpc")
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
                headers = {"authorization": f"Bearer {token}"} if token else {}
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
    async def test_a_request_too_many_is_refused_with_when_to_come_again(self) -> None:
        access = replace(Access(), rates=Rates(requests_per_second=2))
        async with served(fake_stepper(), access=access) as server:
            codes = [await code_of(server.stub.Generate(REQUEST)) for _ in range(4)]
            assert codes[:2] == ["OK", "OK"] and codes[3] == "RESOURCE_EXHAUSTED"
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await server.stub.Score(messages.ScoreRequest())
            error = caught.value
            assert "you ask faster than this server lets one client" in (error.details() or "")
            detail, _ = rpc_status.from_call(error).details  # type: ignore[arg-type, union-attr]  # the id is the other
            retry = error_details_pb2.RetryInfo()
            assert detail.Unpack(retry)
            assert 0 < retry.retry_delay.ToMilliseconds() <= 500
            pushback = dict(error.trailing_metadata())["grpc-retry-pushback-ms"]
            assert 0 < int(pushback) <= 500
            assert server.sample("attendant_rejected_total", model="fake", reason="rate_limited") >= 2
            assert await health_code(server) == "OK", "health is nobody's request"

    async def test_each_client_has_its_own_in_bytes_too(self, tokens: Path) -> None:
        access = replace(open_access(options(tokens=tokens)), rates=Rates(bytes_per_second=0.1 * REQUEST_BYTES))
        async with served(fake_stepper(), access=access) as server:
            for token, code in ((SEARCH, "OK"), (SEARCH, "RESOURCE_EXHAUSTED"), (MAIL, "OK")):
                assert await code_of(server.stub.Generate(REQUEST, **bearer(token))) == code

    async def test_a_stream_is_read_at_the_clients_rate(self) -> None:
        access = replace(Access(), rates=Rates(requests_per_second=20))
        async with served(fake_stepper(), access=access) as server:
            began = time.monotonic()
            answers = [answer async for answer in server.stub.GenerateBatch(iter([REQUEST] * 30))]
            assert [answer.WhichOneof("result") for answer in answers] == ["response"] * 30, "none is refused"
            assert time.monotonic() - began > 0.3, "21 at once, then 20 a second"
