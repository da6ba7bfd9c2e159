"""A server in a process of its own, over the tiny bundle."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from attendant_client import AttendantClient

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """What our commands run in."""
    return {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'client'}", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def target(tiny_bundle_path: Path, environment: dict[str, str]) -> Iterator[str]:
    """Where it listens."""
    command = [sys.executable, "-m", "server", str(tiny_bundle_path), "--port", "0", "--metrics-port", "0"]
    # On a busy machine bulk steps would be kept small, for interactive requests that don't come here.
    command += ["--bulk-seconds", "1"]
    with subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        found = None
        while not found and (line := process.stdout.readline()):
            found = re.match(r"serving on (\S+): ", line)
        assert found, "the server did not start"
        try:
            yield found[1]
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0


@pytest.fixture
async def client(target: str) -> AsyncIterator[AttendantClient]:
    async with AttendantClient(target) as connected:
        yield connected
