import socket
from collections.abc import AsyncIterator, Iterator

import pytest

from attendant_client import AttendantClient
from tests.unit.client.fake_server import Served, served


@pytest.fixture
def server() -> Iterator[Served]:
    with served() as running:
        yield running


@pytest.fixture
def addressed(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets the environment so that the command calls this server."""
    monkeypatch.setenv("ATTENDANT_TARGET", server.target)
    monkeypatch.delenv("ATTENDANT_TOKEN", raising=False)


@pytest.fixture
async def client(server: Served) -> AsyncIterator[AttendantClient]:
    async with AttendantClient(server.target) as connected:
        yield connected


@pytest.fixture
def closed_target() -> Iterator[str]:
    """Yields an address at which no server listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"
