"""Starts worker processes, and sees them end."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Self

from attendant.runtime.cpu import available_cpus
from attendant.server.config import ServerConfig
from attendant.server.engine.remote.flight_record import FlightRecord, new_record
from attendant.server.engine.remote.frames import framed
from attendant.server.engine.remote.shared_rows import SharedRows

END_SECONDS = 2.0
"""How long workers may take to notice that they are not wanted any more: the step under way, or their loading."""


class WorkerProcess:
    """A worker process; see `Worker`."""

    def __init__(self, config: ServerConfig) -> None:
        """Starts it. It loads the only bundle of this configuration."""
        self.connection, theirs = socket.socketpair()
        descriptor = new_record(config.max_rows)
        try:
            self.record = FlightRecord(descriptor)
            passed = theirs.fileno(), descriptor
            command = [sys.executable, "-m", "attendant.server.process.worker_main", *map(str, passed)]
            self._process = subprocess.Popen(command, pass_fds=passed, stdin=subprocess.DEVNULL)
        finally:
            theirs.close()
            os.close(descriptor)
        # If it has ended already, the connection says so.
        with suppress(OSError):
            self.connection.sendall(framed(config))

    def kill(self) -> None:
        self._process.kill()

    def ending(self) -> str:
        status = self._process.poll()
        if status is None:
            return ""
        return f"status {status}" if status >= 0 else f"signal {signal.Signals(-status).name}"

    def hang_up(self) -> None:
        # Closing alone would not reach the worker while an event loop still holds the socket.
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()

    def wait(self, timeout_seconds: float) -> None:
        """Waits for its end, which is forced when the time is over."""
        try:
            self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            # A process that even the kernel can't end now must not keep the server from ending.
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_SECONDS)


class WorkerProcesses:
    """All workers of a server; a context manager that sees them end.

    Attributes:
        rows: that they have together, whichever model and version they decode.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.rows = SharedRows(config.workers * config.max_rows)
        self._config = config
        self._workers: list[WorkerProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        for worker in self._workers:
            worker.hang_up()
        give_up = time.monotonic() + END_SECONDS
        for worker in self._workers:
            worker.wait(max(0.0, give_up - time.monotonic()))

    def start(self, bundle: Path, num_models: int) -> WorkerProcess:
        """Starts a worker that loads a bundle; `num_models`: that share the threads."""
        self._workers = [worker for worker in self._workers if not worker.ending()]
        threads = threads_each(self._config, num_models)
        worker = WorkerProcess(replace(self._config, bundles=(bundle,), threads=threads, workers=1))
        self._workers.append(worker)
        return worker


def threads_each(config: ServerConfig, num_models: int) -> int:
    """CPU threads of each engine: the budget, shared out among models and their workers, and at least one.

    The versions of a model share its requests, so they are not counted: each may use what is the model's.
    """
    return max(1, (config.threads or available_cpus()) // (num_models * config.workers))
