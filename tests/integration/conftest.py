"""Servers that tests share: one of the tiny bundle in its own process, and one of a fake model in this process."""

import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from attendant_client import AttendantClient
from tests.http_serving import Http, http_served
from tests.repositories import put_version
from tests.server_process import command
from tests.server_process import server as server_process
from tests.serving import Served, fake_stepper, served


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """Returns the environment that commands run in."""
    return command()[1]


@pytest.fixture(scope="session")
def target(tiny_bundle_path: Path) -> Iterator[str]:
    """Starts a server of the tiny bundle; yields its address."""
    # Otherwise bulk steps would be kept small on a busy machine, for interactive requests that don't come here.
    with server_process(str(tiny_bundle_path), "--bulk-seconds", "1") as started:
        yield started.target
        started.process.send_signal(signal.SIGTERM)
        assert started.process.wait(30) == 0


@pytest.fixture(scope="module")
def repository(tiny_bundle_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes a repository with one version of a model, `first`."""
    path = tmp_path_factory.mktemp("models")
    put_version(tiny_bundle_path, path, "first", "1")
    return path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Served]:
    async with served(fake_stepper()) as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def web(server: Served) -> AsyncIterator[Http]:
    async with http_served(server) as started:
        yield started


@pytest.fixture
async def client(target: str) -> AsyncIterator[AttendantClient]:
    async with AttendantClient(target) as connected:
        yield connected
