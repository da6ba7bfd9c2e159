"""Variables of the environment that name a proxy: this machine is reached directly, other errors name the proxy."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from attendant_client import AttendantClient, DeadlineExceeded, Unavailable
from attendant_client.command import main
from attendant_client.target import PROXY_VARIABLES, proxy_of
from tests.unit.client.fake_server import Served

ELSEWHERE = "models.example:50051"


@pytest.fixture(autouse=True)
def clear(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*PROXY_VARIABLES, "no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes | None], str]]:
    """Returns a function that starts a proxy with one answer, or with none, and returns where it is."""
    with socket.socket() as listening:
        threads: list[threading.Thread] = []
        listening.bind(("127.0.0.1", 0))
        listening.listen()

        def started(answer: bytes | None) -> str:
            def serve() -> None:
                with ExitStack() as held:
                    while True:
                        try:
                            connection = held.enter_context(listening.accept()[0])
                        except OSError:
                            return
                        connection.recv(4096)
                        if answer is not None:
                            connection.sendall(answer)
                            connection.close()

            threads.append(threading.Thread(target=serve))
            threads[0].start()
            address = f"127.0.0.1:{listening.getsockname()[1]}"
            monkeypatch.setenv("http_proxy", f"http://user:secret@{address}")
            return address

        yield started
        listening.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()


async def test_this_machine_is_reached_directly(
    server: Served, closed_target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in PROXY_VARIABLES:
        monkeypatch.setenv(name, f"http://{closed_target}")
    port = server.target.rpartition(":")[2]
    for target in (server.target, f"127.0.0.1:{port}", port, f"dns:///localhost:{port}"):
        async with AttendantClient(target) as client:
            assert (await client.generate("a")).best.text == "A"


async def test_a_proxy_that_refuses_is_named(proxy: Callable[[bytes | None], str]) -> None:
    address = proxy(b"HTTP/1.1 403 Forbidden\r\n\r\n")
    async with AttendantClient(ELSEWHERE, timeout=20) as client:
        for ask in (client.health(), anext(aiter(client.stream("a")))):
            with pytest.raises(
                Unavailable, match=f"through the proxy http://{address}, which the variable http_proxy"
            ) as caught:
                await ask
            assert "secret" not in str(caught.value)


async def test_a_silent_proxy_is_named(
    proxy: Callable[[bytes | None], str], capsys: pytest.CaptureFixture[str]
) -> None:
    address = proxy(None)
    async with AttendantClient(ELSEWHERE, timeout=0.5) as client:
        with pytest.raises(DeadlineExceeded, match=f"through the proxy http://{address}"):
            await client.models()


def test_the_command_names_a_proxy_that_is_not_there(
    closed_target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("https_proxy", f"http://{closed_target}")
    assert main(["health", "--target", ELSEWHERE]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert (
        f"through the proxy http://{closed_target}, which the variable https_proxy names; no_proxy lists hosts" in line
    )


@pytest.mark.parametrize(
    ("target", "exempt", "is_direct"),
    [
        (ELSEWHERE, "", False),
        (ELSEWHERE, "other.example", False),
        (ELSEWHERE, " .example, ", True),
        (ELSEWHERE, "MODELS.EXAMPLE", True),
        ("dns:///models.example:1", "models.example", True),
        ("ipv4:10.1.2.3:1", "10.0.0.0/8", True),
        ("10.1.2.3:1", "192.168.0.0/16", False),
        ("[2001:db8::1]:1", "2001:db8::/32", True),
        ("unix:/run/a.sock", "", True),
        ("[::1]:1", "", True),
    ],
)
def test_hosts_to_be_reached_directly(
    target: str, exempt: str, is_direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert proxy_of(target) is None
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", exempt)
    assert (proxy_of(target) is None) == is_direct
    monkeypatch.setenv("http_proxy", "socks5://proxy.example:1080")
    assert proxy_of(target) is None, "gRPC connects directly"
