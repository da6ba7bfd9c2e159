"""Tests that the walk of a request in docs/architecture.md names the files that a call visits."""

import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from attendant_client import AttendantClient
from tests.paths import ROOT
from tests.serving import fake_stepper, served

PERIODIC = {"server/polling.py", "server/grpc/port.py"}
"""Files of checks that run periodically, even if there are no calls."""


def walk() -> set[str]:
    """Returns the files in the table. A name without a folder has the folder of the name before it."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("### A request, file by file")[2].partition("\n\nOver HTTP")[0]
    files: list[str] = []
    for row in table.splitlines():
        for name in re.findall(r"`([\w/]+\.py)`", row.rpartition(" | ")[2]):
            files.append(name if "/" in name else f"{files[-1].rpartition('/')[0]}/{name}")
    return set(files)


@pytest.fixture
def visited() -> Iterator[set[str]]:
    """Yields the paths of the modules whose functions are called, on this thread and those that it starts."""
    paths: set[str] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            paths.add(frame.f_code.co_filename)

    threading.setprofile(note)
    sys.setprofile(note)
    yield paths
    sys.setprofile(None)
    threading.setprofile(None)  # type: ignore[arg-type]


async def test_a_call_visits_the_files_that_the_page_names(visited: set[str]) -> None:
    async with served(fake_stepper()) as server, AttendantClient(server.target) as client:
        await client.generate("badge")
        visited.clear()
        generation = await client.generate("face", beam_size=2)
        assert generation.best.tokens
        paths = {Path(path).resolve() for path in set(visited) if path.startswith("/")}
    files = {str(path.relative_to(ROOT)) for path in paths if path.is_relative_to(ROOT) and ".venv" not in path.parts}
    ours = {file for file in files if file.startswith(("client/", "runtime/", "server/"))} - PERIODIC
    assert ours <= walk()
    # The runtime's files are left out, because the stepper is a fake.
    assert {file for file in walk() if file.startswith(("client/", "server/"))} <= ours
