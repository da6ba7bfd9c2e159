"""Tests of token and certificate files, of files that change while the server runs, and of resumed TLS sessions."""

import asyncio
import hashlib
import logging
import math
import os
import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from starlette.applications import Starlette

from attendant.runtime.errors import UserError
from attendant.server import auth
from attendant.server.auth import Access, open_access
from attendant.server.credentials import Reloaded, Token, Tokens, digest_of, read_certificates, read_tokens
from attendant.server.errors import Unauthenticated
from attendant.server.http import port as http
from attendant.server.http.port import http_server
from tests.certificates import Authority, new_authority
from tests.configuration import parse_config
from tests.serving import PATIENCE_SECONDS, eventually

SEARCH, MAIL = "search-token-0123456789", "mail+token/0123456789=="

SAME = "has the token of an earlier line, with another client, expiry or limit"
FACTS = "must have, after its token, only expires=DATE and requests_per_second=NUMBER, bytes_per_second=NUMBER"


def hashed(token: str) -> str:
    """Returns the digest that the documentation computes with `printf %s TOKEN | sha256sum`."""
    return "sha256:" + hashlib.sha256(token.encode()).hexdigest()


def read(path: Path, *lines: str) -> Tokens:
    file = path / "tokens"
    file.write_text("\n".join(lines))
    return read_tokens(file)


def test_tokens_and_their_digests_identify_a_client(tmp_path: Path) -> None:
    tokens = read(
        tmp_path, "# clients", "", f"  search\t{hashed(SEARCH)} ", f"mail {MAIL}", f"mail {hashed('new' * 9)}"
    )
    assert tokens.name_of(f"Bearer {SEARCH}") == "search"
    assert tokens.name_of(f"bearer  {SEARCH} ") == "search", "RFC 9110: the scheme's case does not matter"
    assert tokens.name_of(f"Bearer {MAIL}") == tokens.name_of(f"Bearer {'new' * 9}") == "mail"


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer ", SEARCH, f"Basic {SEARCH}", f"Bearer {SEARCH}x", f"Bearer {SEARCH[:-1]}",
     f"Bearer {hashed(SEARCH)}", "Bearer \udcff\u2028", "Bearer " + "x" * 100_000],
)  # fmt: skip
def test_any_other_authorization_is_refused_and_not_quoted(tmp_path: Path, authorization: str) -> None:
    tokens = read(tmp_path, f"search {hashed(SEARCH)}")
    with pytest.raises(Unauthenticated) as caught:
        tokens.name_of(authorization)
    assert SEARCH[:8] not in str(caught.value) and len(str(caught.value)) < 120


def test_digests_with_equal_beginnings_are_distinguished() -> None:
    digest = digest_of(SEARCH)
    other = digest[:-1] + bytes([digest[-1] ^ 1])
    assert Tokens([Token("other", other), Token("search", digest)]).name_of(f"Bearer {SEARCH}") == "search"
    with pytest.raises(Unauthenticated):
        Tokens([Token("other", other)]).name_of(f"Bearer {SEARCH}")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("search", "must be NAME sha256:DIGEST or NAME TOKEN"),
        (f"search {SEARCH} {MAIL}", FACTS),
        (f"search {hashed(MAIL)} expires=soon", FACTS),
        (f"search {hashed(MAIL)} requests_per_second=0", FACTS),
        (f"se\x1brch {SEARCH}", "begins with a name that is not 1 to 64 letters, digits or any of . _ @ / -"),
        (f"{'s' * 65} {SEARCH}", "begins with a name that is not 1 to 64 letters, digits or any of . _ @ / -"),
        ("search sha256:12ab", "has no 64 hexadecimal digits after sha256:"),
        ("search short-token", "has a token that is not 16 or more printable ASCII characters"),
        ("search tökentökentökentöken", "has a token that is not 16 or more printable ASCII characters"),
        (f"mail {hashed(SEARCH)}", SAME),
        (f"search {SEARCH} expires=2999-12-31", SAME),
    ],
)
def test_an_invalid_line_is_named_by_its_number_alone(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        read(tmp_path, f"search {SEARCH}", line)
    assert str(caught.value) == f"--tokens: {tmp_path}/tokens, line 2 {message}"


def test_tokens_expire_and_have_limits_of_their_own(tmp_path: Path) -> None:
    tokens = read(
        tmp_path,
        f"search {SEARCH} expires=2020-01-01",
        f"search {hashed(MAIL)} expires=2999-12-31T12:00:00+01:00 requests_per_second=2 bytes_per_second=1e6",
    )
    with pytest.raises(Unauthenticated, match="expired"):
        tokens.name_of(f"Bearer {SEARCH}")
    assert tokens.name_of(f"Bearer {MAIL}") == "search"
    assert (tokens.limits_of("search"), tokens.limits_of("other")) == ((2.0, 1e6), (None, None))
    tokens = read(
        tmp_path,
        f"\ufeffsearch {SEARCH} requests_per_second=2",  # with a byte order mark, as some editors write it
        f"search {hashed(MAIL)} requests_per_second=3 bytes_per_second=1e6",
    )
    assert tokens.limits_of("search") == (2.0, 1e6), "each from the first line that has it"


def test_the_last_token_can_be_revoked_but_a_file_must_begin_with_one(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"search {SEARCH}\n")
    access = open_access(parse_config(["bundle", "--tokens", str(file)], {}))
    assert access.tokens is not None and access.tokens.value.name_of(f"Bearer {SEARCH}") == "search"
    file.write_text("# nobody\n")
    access.reload()
    with pytest.raises(Unauthenticated):
        access.tokens.value.name_of(f"Bearer {SEARCH}")
    with pytest.raises(UserError, match=r"holds no token, so no client can call; a line is NAME sha256:DIGEST"):
        open_access(parse_config(["bundle", "--tokens", str(file)], {}))
    with pytest.raises(UserError, match=r"^--tokens: \S+/nothing can't be read: No such file or directory$"):
        read_tokens(tmp_path / "nothing")
    (tmp_path / "binary").write_bytes(b"search \xff\xfe")
    with pytest.raises(UserError, match=r"binary is not UTF-8$"):
        read_tokens(tmp_path / "binary")
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", tmp_path):
        with pytest.raises(UserError, match=rf"^--tokens: {place} must be a regular file"):
            read_tokens(place)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "number"
    path.write_text("1")
    return path


@pytest.fixture
def number(path: Path) -> Reloaded[int]:
    def read() -> int:
        try:
            return int(path.read_text())
        except (OSError, ValueError):
            raise UserError("--number: is none") from None

    return Reloaded([path], read)


def settle(number: Reloaded[int]) -> int:
    """Polls twice, so that a change is applied, and returns the value."""
    number.look()
    number.look()
    return number.value


def replace(path: Path, text: str) -> None:
    aside = path.with_suffix(".new")
    aside.write_text(text)
    aside.rename(path)


def test_a_file_is_read_again_after_two_equal_polls(path: Path, number: Reloaded[int]) -> None:
    for text in ("2", "23", "234"):
        path.write_text(text)
        number.look()
        assert number.value == 1, "it is still being written"
    number.look()
    assert number.value == 234
    replace(path, "5")
    assert settle(number) == 5


def test_links_are_followed(path: Path, number: Reloaded[int], tmp_path: Path) -> None:
    """Kubernetes replaces the files of a secret by renaming a symbolic link to their folder."""
    (tmp_path / "elsewhere").write_text("7")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "link").rename(path)
    assert settle(number) == 7


def test_an_unusable_file_changes_nothing_and_is_logged_once(
    path: Path, number: Reloaded[int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    replace(path, "broken")
    for _ in range(5):
        assert settle(number) == 1
    path.unlink()
    for _ in range(5):
        assert settle(number) == 1
    assert [record.getMessage() for record in caplog.records] == ["not reloaded"] * 2
    replace(path, "3")
    assert settle(number) == 3
    assert caplog.records[-1].getMessage() == "reloaded"


def test_a_file_that_changes_while_it_is_read_is_read_again(path: Path) -> None:
    meddle = True

    def read() -> int:
        content = int(path.read_text())
        if meddle:
            replace(path, str(content + 1))
        return content

    number = Reloaded([path], read)
    first = number.value
    for _ in range(5):
        assert settle(number) == first, "it never was at rest"
    meddle = False
    assert settle(number) == int(path.read_text())


def test_a_file_that_is_touched_is_read_again(path: Path, number: Reloaded[int]) -> None:
    before = path.stat()
    path.write_text("9")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert settle(number) == 9, "same size, same time of modification"


def test_a_system_may_have_switched_off_tls_13(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    wrap = ssl.SSLContext.wrap_bio

    def wrap_old(context: ssl.SSLContext, *bios: ssl.MemoryBIO, **options: Any) -> ssl.SSLObject:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        return wrap(context, *bios, **options)

    monkeypatch.setattr(ssl.SSLContext, "wrap_bio", wrap_old)
    assert read_certificates(*authority.issue("server"), authority.certificate) is not None


def test_comments_of_an_authority_may_have_any_letters(authority: Authority) -> None:
    authority.certificate.write_bytes("# Főtanúsítvány\n".encode() + authority.certificate.read_bytes())
    assert read_certificates(*authority.issue("server"), authority.certificate) is not None


@pytest.mark.parametrize(
    ("from_day", "to_day", "reason"),
    [(-1, 1, None), (-2, -1, "certificate has expired"), (1, 2, "certificate is not yet valid")],
)
def test_a_certificate_that_clients_refuse_is_read_with_a_warning(
    authority: Authority, from_day: int, to_day: int, reason: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    now = datetime.now(UTC)
    files = authority.issue("server", not_before=now + timedelta(from_day), not_after=now + timedelta(to_day))
    for clients in (None, authority.certificate):
        assert read_certificates(*files, clients) is not None
    warned = [(record.getMessage(), vars(record)["reason"]) for record in caplog.records]
    assert warned == [("clients refuse the certificate", reason)] * (2 if reason else 0)


@pytest.mark.parametrize(("year", "reason"), [(2026, None), (4000, "has expired"), (1980, "is not yet valid")])
def test_an_authority_that_is_not_valid_now_is_read_with_a_warning(
    authority: Authority,
    year: int,
    reason: str | None,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files, now = authority.issue("server"), datetime(year, 12, 1, tzinfo=UTC).timestamp()
    monkeypatch.setattr(time, "time", lambda: now)
    assert read_certificates(*files, authority.certificate) is not None
    reasons = [str(vars(record)["reason"]) for record in caplog.records]
    assert len(reasons) == bool(reason) and all(each.endswith(str(reason)) for each in reasons)


def test_a_key_of_another_certificate_is_refused(authority: Authority) -> None:
    certificate, _ = authority.issue("server")
    _, key = authority.issue("other")
    with pytest.raises(UserError) as caught:
        read_certificates(certificate, key)
    assert all(words in str(caught.value) for words in (str(certificate), str(key), "key values mismatch"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "can't be read: No such file or directory"),
        ("", "must be PEM"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "must be PEM"),
    ],
)
def test_files_that_are_missing_or_not_pem_are_refused(authority: Authority, text: str | None, reason: str) -> None:
    certificate, key = authority.issue("server")
    broken = authority.folder / "broken"
    if text is not None:
        broken.write_text(text)
    for wrong, option in (
        ((broken, key), "--tls-certificate"),
        ((certificate, broken), "--tls-key"),
        ((certificate, key, broken), "--tls-client-ca"),
    ):
        with pytest.raises(UserError, match=reason) as caught:
            read_certificates(*wrong)
        message = str(caught.value)
        assert "\n" not in message and str(broken) in message and option in message


def test_a_key_with_a_password_is_refused(authority: Authority) -> None:
    certificate, key = authority.issue("server")
    private = load_pem_private_key(key.read_bytes(), None)
    key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")))
    with pytest.raises(UserError, match=r"the key without a password$"):
        read_certificates(certificate, key)


VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)


@pytest.fixture
def access(authority: Authority) -> Access:
    certificate, key = authority.issue("server")
    files = "--tls-certificate", str(certificate), "--tls-key", str(key), "--tls-client-ca", str(authority.certificate)
    return open_access(parse_config(["bundle", *files], {}))


async def test_the_log_warns_once_when_certificates_expire_while_the_server_runs(
    access: Access, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "POLL_SECONDS", 0.005)
    with access.following_files():
        await asyncio.sleep(0.02)
        assert not caplog.records
        monkeypatch.setattr(time, "time", lambda: datetime(4000, 1, 1, tzinfo=UTC).timestamp())
        await eventually(lambda: caplog.records)
        await asyncio.sleep(0.05)
    assert [record.getMessage() for record in caplog.records] == ["clients of an authority are refused"]


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
