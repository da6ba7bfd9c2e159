"""Starts worker processes, and waits for their end."""

import itertools
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

from attendant.runtime.process import available_cpus
from attendant.server.config import ServerConfig
from attendant.server.engine.protocol import FlightRecord, Frames, framed, new_record
from attendant.server.engine.shares import SharedRows
from attendant.server.engine.worker import RECEIVED_BYTES
from attendant.server.process.forking import WorkerState, send_place

END_SECONDS = 2.0
"""Time that workers get to end after their connections were closed: for the step under way, or their loading."""


class _Process:
    """A process that loads a bundle, and then is its worker, or forks its workers (forking.py)."""

    def __init__(self, config: ServerConfig) -> None:
        """Starts a process that loads the only bundle of this configuration; it forks if there are several workers."""
        self.forks = config.workers > 1
        self._states: dict[int, WorkerState] = {}
        self._frames = Frames()
        self._control, theirs = socket.socketpair()
        command = [sys.executable, "-m", "attendant.server.process.worker_main", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        # If it has ended already, the workers' connections are closed, which is noticed.
        with suppress(OSError):
            self._control.sendall(framed(config))
        self._control.setblocking(False)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def request_worker(self, number: int, connection: socket.socket, record: int) -> None:
        """Requests a worker with this number, connection and flight record."""
        with suppress(OSError):
            send_place(self._control, number, connection, record)

    def kill(self, number: int) -> None:
        """Kills a worker; before it has been forked, the process itself."""
        state = self._state(number)
        if state is None:
            self._process.kill()
        elif state.status is None and self.is_running:
            with suppress(ProcessLookupError):
                os.kill(state.process, signal.SIGKILL)

    def status(self, number: int) -> int | None:
        """Returns the exit status of a worker, or None while it runs. Forked workers end with their parent."""
        state = self._state(number)
        return self._process.poll() if state is None or state.status is None else state.status

    def hang_up(self) -> None:
        """Lets the process end after its workers, because no more will be requested."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)

    def wait(self, timeout_seconds: float) -> None:
        """Waits for the end of the process, and kills it when the time is over."""
        try:
            self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            # A process that even the kernel can't end now must not keep the server from ending.
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_SECONDS)
        self._control.close()

    def _state(self, number: int) -> WorkerState | None:
        """Returns the latest reported state of a forked worker."""
        with suppress(OSError):  # there is nothing to read, or the process has gone
            while data := self._control.recv(RECEIVED_BYTES):
                self._states.update({state.number: state for state in self._frames.feed(data)})
        return self._states.get(number)


class WorkerProcess:
    """A worker; see `Worker` in server/engine/supervision.py."""

    def __init__(self, process: _Process, number: int, max_requests: int) -> None:
        """Requests a worker. `number` is unique among the workers of a process."""
        self.connection, theirs = socket.socketpair()
        descriptor = new_record(max_requests)
        self._process, self._number = process, number
        try:
            self.record = FlightRecord(descriptor)
            process.request_worker(number, theirs, descriptor)
        finally:
            theirs.close()
            os.close(descriptor)

    def kill(self) -> None:
        self._process.kill(self._number)

    def ending(self) -> str:
        status = self._process.status(self._number)
        if status is None:
            return ""
        return f"status {status}" if status >= 0 else f"signal {signal.Signals(-status).name}"

    def hang_up(self) -> None:
        # Closing alone would not reach the worker while an event loop still holds the socket.
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()


class WorkerGroup:
    """The workers of one version of a model. Those with one thread each share the memory of the bundle."""

    def __init__(self, config: ServerConfig) -> None:
        """Makes a group without workers. `config.workers` is the number of workers that share memory."""
        self._config = config
        self._numbers = itertools.count()
        self._processes: list[_Process] = []
        self._workers: list[WorkerProcess] = []
        self._is_closed = False

    def start(self) -> WorkerProcess:
        """Starts a worker, which loads the bundle or is forked from the process that loads it."""
        for process in [process for process in self._processes if not process.is_running]:
            process.wait(0.0)
            self._processes.remove(process)
        self._workers = [worker for worker in self._workers if not worker.ending()]
        if not self._processes or not self._processes[-1].forks:
            self._processes.append(_Process(self._config))
        worker = WorkerProcess(self._processes[-1], next(self._numbers), self._config.max_rows)
        self._workers.append(worker)
        return worker

    def close(self) -> None:
        """Lets the processes end, because no more workers will be started."""
        self._is_closed = True
        for process in self._processes:
            process.hang_up()

    @property
    def has_ended(self) -> bool:
        return self._is_closed and not any(process.is_running for process in self._processes)

    def hang_up(self) -> None:
        """Closes the connections of all workers, so that they end."""
        for worker in self._workers:
            worker.hang_up()
        self.close()

    def wait(self, give_up: float) -> None:
        """Waits for the end of the processes, and kills them at that moment of time.monotonic()."""
        for process in self._processes:
            process.wait(max(0.0, give_up - time.monotonic()))


class WorkerProcesses:
    """All workers of a server; a context manager that ends them.

    Attributes:
        rows: of all models and versions together.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.rows = SharedRows(config.workers * config.max_rows)
        self._config = config
        self._groups: list[WorkerGroup] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        for group in self._groups:
            group.hang_up()
        give_up = time.monotonic() + END_SECONDS
        for group in self._groups:
            group.wait(give_up)

    def group(self, bundle: Path, num_models: int) -> WorkerGroup:
        """Returns a group of workers for a bundle, none of them started; `num_models` models share the threads."""
        threads = threads_each(self._config, num_models)
        # Loading starts threads if there are several, or a GPU; a forked process would not have them.
        shares = threads == 1 and self._config.provider == "cpu"
        workers = self._config.workers if shares else 1
        for group in [group for group in self._groups if group.has_ended]:
            group.wait(0.0)
            self._groups.remove(group)
        group = WorkerGroup(replace(self._config, bundles=(bundle,), threads=threads, workers=workers))
        self._groups.append(group)
        return group


def threads_each(config: ServerConfig, num_models: int) -> int:
    """Returns the CPU threads of each engine: the budget divided among models and their workers, and at least one.

    Versions of a model share its requests, so they are not counted: each may use the model's threads.
    """
    return max(1, (config.threads or available_cpus()) // (num_models * config.workers))
