"""Tests of the client's connections: encryption unless the server is on this machine, and credentials."""

import os
from pathlib import Path
from typing import Any

import grpc
import pytest

from attendant_client import AttendantClient, TlsFailed, Unavailable
from attendant_client.command import main
from attendant_client.target import is_this_machine, with_port
from tests.certificates import Authority, new_authority
from tests.unit.client.fake_server import Served, served


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ATTENDANT_")]:
        monkeypatch.delenv(name)


def credentials(authority: Authority, *names: str, clients: Authority | None = None) -> grpc.ServerCredentials:
    certificate, key = (file.read_bytes() for file in authority.issue("server", *(names or ("localhost",))))
    roots = None if clients is None else clients.certificate.read_bytes()
    return grpc.ssl_server_credentials([(key, certificate)], roots, clients is not None)


HERE = [
    "localhost", "localhost:50051", "LOCALHOST:1", "127.0.0.1:50051", "127.8.9.1:1", "[::1]:50051", "::1",
     "unix:/run/a.sock", "unix:///run/a.sock", "unix-abstract:a", "dns:localhost:1", "dns:///localhost:50051",
     "ipv4:127.0.0.1:1,127.0.0.2:1", "ipv6:[::1]:1", "ipv6:%5B::1%5D:1",
]  # fmt: skip
ELSEWHERE = [
    "models.example:50051", "10.0.0.1:50051", "[2001:db8::1]:1", "localhost.example:1", "127.0.0.1.example:1",
     "dns:///models.example:1", "dns://localhost/models.example:1", "ipv4:127.0.0.1:1,10.0.0.1:1", "attendant", "",
     "0.0.0.0:50051",
]  # fmt: skip


@pytest.mark.parametrize("target", HERE + ELSEWHERE)
def test_targets_on_this_machine_are_recognized(target: str) -> None:
    assert is_this_machine(target) == (target in HERE)


@pytest.mark.parametrize(
    ("target", "meant"),
    [
        ("localhost", "localhost:50051"),
        ("10.0.0.7", "10.0.0.7:50051"),
        ("dns:///models.example", "dns:///models.example:50051"),
        ("unix:/run/a", "unix:/run/a"),
        ("ipv4:1.2.3.4,6.7.8.9:5", "ipv4:1.2.3.4:50051,6.7.8.9:5"),
        ("ipv6:%5B::1%5D:1", "ipv6:[::1]:1"),
        ("::1", "[::1]:50051"),
        ("7", "localhost:7"),
        (":7", "localhost:7"),
        (" models:7\n", "models:7"),
    ],
)
def test_a_target_without_a_port_has_the_servers_default_port(target: str, meant: str) -> None:
    assert with_port(target) == meant


@pytest.mark.parametrize(
    ("target", "error", "words"),
    [
        (None, TypeError, "target=None: must be a text, such as localhost:50051"),
        ("", ValueError, "target: is empty"),
        ("localhost:99999", ValueError, "target='localhost:99999': port '99999' must be a number from 1 to 65535"),
        ("localhost:", ValueError, "port '' must be a number from 1 to 65535; without its colon it is 50051"),
        ("localhost:-1", ValueError, "port '-1' must be a number"),
        ("0", ValueError, "port '0' must be a number"),
        ("::1:50051", ValueError, r"has several colons; an IPv6 address with a port is written \[::1\]:50051"),
        ("[::1]50051", ValueError, "is not an IPv6 address and a port"),
        ("http://models:7/", ValueError, "target='http://models:7/': is a URL; give the server as HOST:PORT"),
        ("models:7/v1", ValueError, "has a path"),
        ("two words:7", ValueError, "is not a host and port"),
        ("unix:", ValueError, "names nothing after unix:"),
        ("a:1,b:2", ValueError, "has several servers; list their addresses as ipv4:"),
        ("ipv4:1.2.3.4:70000,6.7.8.9:5", ValueError, "port '70000'"),
    ],
)
async def test_an_invalid_target_is_refused(target: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        AttendantClient(target)


@pytest.mark.parametrize(
    ("credentials", "error", "words"),
    [
        ({"root_certificates": "ca.pem"}, TypeError, "^root_certificates: is str, must be PEM as bytes, such as a"),
        ({"client_key": Path("key.pem")}, TypeError, "^client_key: is PosixPath, must be PEM as bytes"),
        ({"tls": "no"}, TypeError, "^tls: is str, must be True, False or None"),
        ({"server_name": 7}, TypeError, "^server_name: is int, must be a text"),
        ({"token": b"secret"}, TypeError, "^token: is bytes, must be a text"),
        # Nothing would mean the public authorities, or no certificate.
        ({"root_certificates": b""}, ValueError, "^root_certificates: is empty"),
        ({"client_certificate": b""}, ValueError, "^client_certificate: is empty"),
        ({"client_key": b""}, ValueError, "^client_key: is empty"),
        ({"client_key": b"key"}, ValueError, "client_certificate and client_key need each other"),
        ({"tls": False, "root_certificates": b"PEM"}, ValueError, "tls=False excludes certificates"),
    ],
)
async def test_unusable_credentials_are_refused(credentials: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        AttendantClient(**credentials)


async def test_calls_are_encrypted_except_to_this_machine(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    async with AttendantClient(server.target) as client:
        await client.generate("a")
    # The same server, as if it were on another machine: by default, the client sends nothing unencrypted.
    monkeypatch.setattr("attendant_client.client.is_this_machine", lambda target: False)
    async with AttendantClient(server.target, token="secret") as client:
        with pytest.raises(TlsFailed, match=r"^the server does not speak TLS$"):
            await client.generate("b")
    async with AttendantClient(server.target, tls=False) as client:
        await client.generate("c")
    assert [request.text for request in server.seq2seq.requests] == ["a", "c"]


async def test_a_client_certificate_is_sent_to_a_server_that_requires_one(authority: Authority, tmp_path: Path) -> None:
    clients = new_authority(tmp_path / "clients")
    certificate, key = (file.read_bytes() for file in clients.issue("search", "search.example"))
    roots = authority.certificate.read_bytes()
    with served(credentials(authority, clients=clients)) as secure:
        async with AttendantClient(
            secure.target, root_certificates=roots, client_certificate=certificate, client_key=key
        ) as client:
            assert (await client.generate("a")).best.text == "A"
        async with AttendantClient(secure.target, root_certificates=roots) as client:
            with pytest.raises(Unavailable):
                await client.generate("a")
        async with AttendantClient(
            secure.target, root_certificates=roots, client_certificate=certificate, client_key=b"no key"
        ) as client:
            with pytest.raises(TlsFailed, match="can't be used: not PEM, or not a pair"):
                await client.generate("a")


async def test_this_machine_is_reached_without_a_proxy(
    server: Served, closed_target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("grpc_proxy", f"http://{closed_target}")
    async with AttendantClient(server.target) as client:
        assert (await client.generate("a")).best.text == "A"


def test_the_command_takes_credentials_from_options_and_environment(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clients = new_authority(tmp_path / "clients")
    certificate, key = clients.issue("search", "search.example")
    (tmp_path / "token").write_text("from-a-file\n")
    options = {
        "target": "",
        "root-certificates": str(authority.certificate),
        "client-certificate": str(certificate),
        "client-key": str(key),
        "server-name": "models.example",
        "token-file": str(tmp_path / "token"),
    }
    with served(credentials(authority, "models.example", clients=clients)) as secure:
        options["target"] = secure.target
        assert main(["generate", "a", *(f"--{name}={value}" for name, value in options.items())]) == 0
        for name, value in options.items():
            monkeypatch.setenv("ATTENDANT_" + name.replace("-", "_").upper(), value)
        monkeypatch.setenv("ATTENDANT_TOKEN", "from-the-environment")
        assert main(["generate", "b"]) == 0
        monkeypatch.delenv("ATTENDANT_TOKEN_FILE")
        assert main(["generate", "c"]) == 0
        sent = [metadata["authorization"] for metadata in secure.seq2seq.metadata]
        assert sent == ["Bearer from-a-file", "Bearer from-a-file", "Bearer from-the-environment"]
    assert capsys.readouterr() == ("A\nB\nC\n", "")


def test_messages_explain_why_a_server_is_not_trusted(
    server: Served, authority: Authority, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    roots = f"--root-certificates={authority.certificate}"
    other = f"--root-certificates={new_authority(tmp_path / 'other').certificate}"

    def refusal(*arguments: str) -> str:
        assert main(["health", *arguments]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        return line

    assert "the server does not speak TLS); --tls and --insecure" in refusal("--target", server.target, "--tls")
    with served(credentials(authority, "localhost")) as secure:
        assert "is not from an authority that is trusted here" in refusal("--target", secure.target, other)
        assert "it may speak TLS, or ask for a client's certificate" in refusal("--target", secure.target, "--insecure")
        assert "is for another name" in refusal("--target", secure.target, roots, "--server-name=models.example")


def test_help_shows_no_secret(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").write_text("secret-in-a-file")
    monkeypatch.setenv("ATTENDANT_TOKEN", "secret-in-a-variable")
    monkeypatch.setenv("ATTENDANT_TOKEN_FILE", str(tmp_path / "token"))
    with pytest.raises(SystemExit):
        main(["generate", "--help"])
    assert "secret" not in capsys.readouterr().out
