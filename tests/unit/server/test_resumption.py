"""Tests of TLS session resumption: it must not bypass the check of the client's certificate."""

import asyncio
import math
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
from starlette.applications import Starlette

from attendant.server.auth import Access, open_access
from attendant.server.http import port as http
from attendant.server.http.port import http_server
from tests.certificates import Authority, new_authority
from tests.configuration import parse_config
from tests.serving import PATIENCE_SECONDS

VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)


@pytest.fixture
def access(authority: Authority) -> Access:
    certificate, key = authority.issue("server")
    files = "--tls-certificate", str(certificate), "--tls-key", str(key), "--tls-client-ca", str(authority.certificate)
    return open_access(parse_config(["bundle", *files], {}))


class Client:
    """A client with a certificate, which resumes its last session if the server allows it."""

    def __init__(self, authority: Authority, version: ssl.TLSVersion, protocol: str) -> None:
        self._context = ssl.create_default_context(cafile=authority.certificate)
        self._context.load_cert_chain(*authority.issue("client"))
        self._context.minimum_version = self._context.maximum_version = version
        self._context.set_alpn_protocols([protocol])
        self._session: ssl.SSLSession | None = None

    def connect(self, port: int) -> tuple[bool, bytes]:
        """Connects and sends a request.

        Returns:
            True if a session was resumed; and the answer's beginning, empty if the server closes the connection.
        """
        plain = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)
        try:
            connection = self._context.wrap_socket(plain, server_hostname="localhost", session=self._session)
        except OSError:
            plain.close()
            return False, b""
        with connection:
            answer = b""
            with suppress(OSError):
                connection.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                answer = connection.recv(100)
            self._session = connection.session
            return bool(connection.session_reused), answer


def forget(authority: Authority, access: Access, folder: Path) -> None:
    """Replaces the certificate authority of the clients with another one."""
    other = new_authority(folder / "other")
    authority.certificate.write_bytes(other.certificate.read_bytes())
    assert access.certificates is not None
    access.certificates.look()
    access.certificates.look()


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
async def test_a_removed_authority_is_refused_over_http(
    authority: Authority, access: Access, version: ssl.TLSVersion, tmp_path: Path
) -> None:
    client = Client(authority, version, "http/1.1")
    async with http_server(Starlette(), "127.0.0.1", 0, access.http_context) as port:
        for _ in range(2):
            resumed, answer = await asyncio.to_thread(client.connect, port)
            assert answer and not (resumed and version is ssl.TLSVersion.TLSv1_3)
        forget(authority, access, tmp_path)
        for _ in range(4):
            resumed, answer = await asyncio.to_thread(client.connect, port)
            assert not resumed and not answer


async def test_an_expired_certificate_is_refused_over_http(
    authority: Authority, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(authority, ssl.TLSVersion.TLSv1_2, "http/1.1")
    async with http_server(Starlette(), "127.0.0.1", 0, access.http_context) as port:
        assert (await asyncio.to_thread(client.connect, port))[1]
        monkeypatch.setattr(http, "time", SimpleNamespace(time=lambda: math.inf))
        for _ in range(4):
            assert not (await asyncio.to_thread(client.connect, port))[1]


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
def test_tls_sessions_are_not_resumed_over_grpc(authority: Authority, access: Access, version: ssl.TLSVersion) -> None:
    client = Client(authority, version, "h2")
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_secure_port("localhost:0", access.grpc_credentials())
    server.start()
    try:
        assert [client.connect(port)[0] for _ in range(4)] == [False] * 4
    finally:
        server.stop(None)
