"""Tests of worker processes: they end with the server."""

import pytest

from attendant.server.config import ServerConfig
from attendant.server.engine import processes
from attendant.server.engine.processes import END_SECONDS, WorkerProcesses


def test_hanging_workers_share_the_time_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now, killed = 100.0, list[int]()

    class HangingProcess:
        def __init__(self, config: ServerConfig) -> None:
            self.is_running = True

        def hang_up(self) -> None:
            assert not killed, "every process is asked to end before the server waits for one"

        def wait(self, timeout_seconds: float) -> None:
            nonlocal now
            now += timeout_seconds
            killed.append(id(self))

    monkeypatch.setattr(processes, "_Process", HangingProcess)
    monkeypatch.setattr("attendant.server.engine.processes.time.monotonic", lambda: now)
    with WorkerProcesses(ServerConfig(bundles=())) as workers:
        for _ in range(5):
            workers._begin(ServerConfig(bundles=()))
    assert len(set(killed)) == 5
    assert now == 100.0 + END_SECONDS
