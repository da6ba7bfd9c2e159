"""Tests of the HTTP port with clients that send too little, too much or invalid bytes, or stop reading."""

import asyncio
import gc
import logging
import os
import re
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing, suppress
from typing import Any

import grpc
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from attendant.runtime.errors import UserError
from attendant.server.grpc.port import bind
from attendant.server.http import port as http
from attendant.server.http.port import http_server
from tests.serving import PATIENCE_SECONDS, eventually

BIG = b"x" * 50_000_000
GET = b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n"

Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


class Application:
    """Routes that answer at once, never, with a large body, or with an exception."""

    def __init__(self) -> None:
        self.waiting = 0

    async def quick(self, request: Request) -> Response:
        return PlainTextResponse("quick")

    async def host(self, request: Request) -> Response:
        return PlainTextResponse(request.headers["host"])

    async def never(self, request: Request) -> Response:
        self.waiting += 1
        await asyncio.Event().wait()
        raise AssertionError

    async def big(self, request: Request) -> Response:
        return Response(BIG)

    async def wrong(self, request: Request) -> Response:
        raise ValueError("inner\nwords")


@pytest.fixture
def application() -> Application:
    return Application()


@pytest.fixture
async def connect(application: Application) -> AsyncIterator[Connect]:
    paths = ("quick", "host", "never", "big", "wrong")
    app = Starlette(routes=[Route(f"/{path}", getattr(application, path)) for path in paths])
    writers = []
    async with http_server(app, "127.0.0.1", 0) as port:

        async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writers.append(writer)
            return reader, writer

        yield connect
        for writer in writers:
            writer.close()


async def ask(connect: Connect, path: bytes) -> bytes:
    """Sends a request and returns the status line of the answer."""
    reader, writer = await connect()
    writer.write(GET % path)
    return await reader.readline()


async def ended(reader: asyncio.StreamReader) -> bytes:
    """Reads until the server closes the connection; fails after 10 seconds."""
    async with asyncio.timeout(10):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


async def test_several_requests_on_one_connection(connect: Connect) -> None:
    reader, writer = await connect()
    writer.write(3 * (GET % b"/quick"))
    for _ in range(3):
        assert (await reader.readuntil(b"quick")).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("piece", [b"", b"GET /quick HTTP/1.1\r\nHost: x\r\n", GET % b"/quick"])
async def test_a_connection_without_a_complete_request_is_closed(
    connect: Connect, piece: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is the same before the first request and after it."""
    monkeypatch.setattr(http, "REQUEST_SECONDS", 0.2)
    reader, writer = await connect()
    writer.write(piece)
    await ended(reader)


async def test_a_connection_whose_head_comes_too_slowly_is_closed(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "REQUEST_SECONDS", 0.3)
    reader, writer = await connect()
    end = asyncio.create_task(ended(reader))
    async with asyncio.timeout(10):
        while not end.done():
            writer.write(b"G")
            await asyncio.sleep(0.02)
    assert end.result() == b""


async def test_an_application_that_works_is_waited_for(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_SECONDS", 0.1)
    reader, writer = await connect()
    writer.write(GET % b"/never")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await reader.read(1)


async def test_a_connection_that_stops_reading_is_closed(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "WRITE_SECONDS", 0.2)
    reader, writer = await connect()
    writer.write(GET % b"/big")
    await reader.readline()
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    await asyncio.sleep(0.5)
    writer.transport.resume_reading()  # type: ignore[attr-defined]
    assert len(await ended(reader)) < len(BIG)


async def test_a_new_connection_replaces_the_longest_idle_one(
    connect: Connect, application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 4)
    working, writer = await connect()
    writer.write(GET % b"/never")
    await eventually(lambda: application.waiting == 1)
    idle = [await connect() for _ in range(20)]
    assert await ask(connect, b"/quick") == b"HTTP/1.1 200 OK\r\n"
    for reader, _ in idle[:-2]:
        assert await ended(reader) == b""
    for reader, writer in idle[-2:]:
        writer.write(GET % b"/quick")
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
    assert not working.at_eof()


async def test_a_new_connection_is_refused_if_all_are_busy(
    connect: Connect, application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 2)
    for _ in range(2):
        _, writer = await connect()
        writer.write(GET % b"/never")
    await eventually(lambda: application.waiting == 2)
    reader, _ = await connect()
    assert await ended(reader) == b""


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00 a TLS hello\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * http.MAX_HEAD_BYTES,
        b"GET / HTTP/1.1\r\nHost: x\r\nX: \x0b\r\n\r\n",
        b"\n" * 100_000,
    ],
)
async def test_bytes_that_are_no_request_are_refused_and_not_logged(
    connect: Connect, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await connect()
    writer.write(sent)
    assert (await ended(reader)).partition(b"\r\n")[0] in (b"HTTP/1.1 400 Bad Request", b"")
    assert await ask(connect, b"/nothing") == b"HTTP/1.1 404 Not Found\r\n"
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


BODY = b"3\r\nabc\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"GET /quick HTTP/2.0\r\nHost: x\r\n\r\n", b"version"),
        (b"GET /quick HTTP/0.9\r\n\r\n", b"version"),
        (b"GET /quick HTTP/11\r\nHost: x\r\n\r\n", b"Invalid"),
        (
            b"POST /quick HTTP/1.1\r\nHost: x\r\ntransfer-encoding: chunked\r\ncontent-length: 0\r\n\r\n" + BODY,
            b"combined",
        ),
        (b"POST /quick HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + BODY, b"HTTP/1.0"),
        (b"GET quick HTTP/1.1\r\nHost: x\r\n\r\n", b"target"),
        (b"GET * HTTP/1.1\r\nHost: x\r\n\r\n", b"target"),
        (b"GET http://user@x/quick HTTP/1.1\r\nHost: x\r\n\r\n", b"target"),
        (b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n", b"target"),
    ],
)
async def test_an_ambiguous_request_is_refused_and_its_connection_closed(
    connect: Connect, sent: bytes, reason: bytes
) -> None:
    reader, writer = await connect()
    writer.write(sent + GET % b"/quick")
    answers = await ended(reader)
    assert answers.startswith(b"HTTP/1.1 400 Bad Request\r\n") and answers.count(b"HTTP/1.1 ") == 1
    assert reason in answers


@pytest.mark.parametrize(
    "target", [b"http://x/quick", b"HTTP://x:80/quick", b"https://x/quick?a=1", b"http://[::1]:80/quick?"]
)
async def test_a_target_may_be_a_url_whose_host_counts(connect: Connect, target: bytes) -> None:
    assert await ask(connect, target) == b"HTTP/1.1 200 OK\r\n"
    assert await ask(connect, b"http://x") == b"HTTP/1.1 404 Not Found\r\n", "the root"
    reader, writer = await connect()
    writer.write(b"GET %s HTTP/1.1\r\nHost: other.example\r\n\r\n" % target.replace(b"quick", b"host"))
    answer = await reader.readuntil(b"\r\n\r\n")
    length = int(answer.lower().partition(b"content-length: ")[2].split()[0])
    assert await reader.readexactly(length) == target.split(b"/")[2]


async def test_a_fault_of_the_application_is_an_answer_and_one_record(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    assert await ask(connect, b"/wrong") == b"HTTP/1.1 500 Internal Server Error\r\n"
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert record.exc_info is not None or hasattr(record, "traceback")


async def test_a_port_that_can_not_be_opened_is_refused() -> None:
    app: Any = Application()
    async with http_server(app, "127.0.0.1", 0) as port:
        with pytest.raises(UserError, match=rf"^--metrics-port: can't listen on 127\.0\.0\.1:{port}: Address already"):
            async with http_server(app, "127.0.0.1", port):
                pass
    is_host = "--host is 'a..b', must be an address or a name of this machine: not a valid host name"
    refusals = {"2001:db8::1": "--metrics-port: can't listen on [2001:db8::1]:1: ", "a..b": is_host}
    for host, message in refusals.items():
        with pytest.raises(UserError, match=f"^{re.escape(message)}"):
            async with http_server(app, host, 1):
                pass


async def test_a_host_name_with_several_addresses_is_served_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example, `localhost` is also ::1, even on a machine without IPv6. gRPC may fail to resolve the name."""
    families = {"2001:db8::1": socket.AF_INET6, "127.0.0.1": socket.AF_INET, "127.0.0.2": socket.AF_INET}
    addresses = [(family, socket.SOCK_STREAM, 0, "", (host, 0)) for host, family in families.items()]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)
    server = grpc.aio.server()
    async with http_server(Starlette(), "127.1", 0) as port:
        ports = port, bind(server, "127.1", 0)
        monkeypatch.undo()
        await server.start()
        for host in ("127.0.0.1", "127.0.0.2"):
            for number in ports:
                socket.create_connection((host, number), PATIENCE_SECONDS).close()
    await server.stop(None)


async def test_connections_wait_while_too_many_files_are_open(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    port = (await connect())[1].get_extra_info("peername")[1]
    waiting = socket.create_connection(("127.0.0.1", port))
    with closing(waiting):
        os.close(lowest_free := os.dup(0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
        try:
            await eventually(lambda: "no connection could be accepted" in caplog.messages)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        waiting.settimeout(PATIENCE_SECONDS)
        waiting.sendall(GET % b"/quick")
        assert (await asyncio.to_thread(waiting.recv, 1000)).startswith(b"HTTP/1.1 200")
    reasons = [
        vars(record)["reason"] for record in caplog.records if record.message == "no connection could be accepted"
    ]
    assert set(reasons) == {"Too many open files"}


async def test_connections_accepted_at_the_end_are_closed() -> None:
    for turns in range(6):
        async with http_server(Starlette(), "127.0.0.1", 0) as port:
            peer = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)
            for _ in range(turns):
                await asyncio.sleep(0)
        with closing(peer), suppress(ConnectionResetError):
            assert await asyncio.to_thread(peer.recv, 1) == b""
    gc.collect()  # reports a socket that was left open
