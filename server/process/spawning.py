"""Starts worker processes, and sees them end."""

import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from typing import Self

from attendant.runtime.bundle.bundle import Bundle
from attendant.runtime.errors import UserError
from attendant.server.config import ServerConfig
from attendant.server.engine.remote.frames import framed, receive_one
from attendant.server.engine.remote.messages import READY
from attendant.server.loading import threads_each

END_SECONDS = 5.0
"""How long a worker may take to notice that it is not wanted any more: the step under way, or its loading."""


class WorkerProcesses:
    """All workers of a server; a context manager that sees them end."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[socket.socket] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        for connection in self._connections:
            # Closing alone would not reach the worker while an event loop still holds the socket.
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        for process in self._processes:
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def serve(self, bundle: Bundle, config: ServerConfig) -> list[socket.socket]:
        """Starts `config.workers` workers and waits until all are ready; returns the connections to them.

        Raises:
            UserError: the first one that refused says why.
            RuntimeError: a worker ended while it loaded.
        """
        alone = replace(config, bundles=(bundle.path,), threads=threads_each(config), workers=1)
        connections = [self._start(alone) for _ in range(config.workers)]
        for connection in connections:
            _check_ready(connection)
        return connections

    def _start(self, config: ServerConfig) -> socket.socket:
        ours, theirs = socket.socketpair()
        self._connections.append(ours)
        with theirs:
            command = [sys.executable, "-m", "attendant.server.process.worker_main", str(theirs.fileno())]
            self._processes.append(subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL))
        ours.sendall(framed(config))
        return ours


def _check_ready(connection: socket.socket) -> None:
    answer = receive_one(connection)
    if isinstance(answer, UserError):
        raise answer
    if answer != READY:
        raise RuntimeError("a worker process ended while it loaded its bundle; what it said stands above")
