"""Worker processes: they are started, or forked by the process that has loaded their bundle, and end with the server.

Forked workers share the memory of their bundle. So its weights are in memory once for any number of workers, and
once in the processor's last cache: with weights of their own, two workers read them from memory where one would find
them in the cache. Only the thread that forks lives on in the new process, and ONNX Runtime would wait indefinitely for
the others. So workers are forked only if each has one thread: then ONNX Runtime starts none.

The server requests each worker on the control socket, with the descriptors that the worker gets. It receives each
worker's process id, and later how that process ended.
"""

import ctypes
import gc
import itertools
import logging
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Self

from attendant.runtime.process import available_cpus
from attendant.server.config import ServerConfig
from attendant.server.engine.dispatch import SharedRows
from attendant.server.engine.messages import RECEIVED_BYTES, FlightRecord, Frames, framed, new_record

log = logging.getLogger(__name__)

NUMBER = struct.Struct("<I")
NUM_DESCRIPTORS = 2
PR_SET_PDEATHSIG = 1

SERVER_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
"""A terminal or an operator sends these to the workers too, which inherit that they are blocked: the server decides
when they end, and closes the connection."""

OOM_SCORE = Path("/proc/self/oom_score_adj")
WORKER_OOM_SCORE = "500"
"""When memory runs out, the kernel ends a worker rather than the server, which starts another one."""

RESTARTS_WINDOW_SECONDS = 600.0
FIRST_DELAY_SECONDS = 0.5
MAX_DELAY_SECONDS = 30.0


class Restarts:
    """Delays between restarts: the first within a window follows at once, each further one after twice the time."""

    def __init__(self, max_restarts: int) -> None:
        """`max_restarts`: within RESTARTS_WINDOW_SECONDS."""
        self._max = max_restarts
        self._times: deque[float] = deque()

    def delay(self, now: float) -> float | None:
        """Returns the seconds until a worker that died is restarted; None if too many have died."""
        while self._times and self._times[0] <= now - RESTARTS_WINDOW_SECONDS:
            self._times.popleft()
        if len(self._times) >= self._max:
            return None
        self._times.append(now)
        earlier = len(self._times) - 1
        return min(FIRST_DELAY_SECONDS * 2 ** (earlier - 1), MAX_DELAY_SECONDS) if earlier else 0.0


class Place(NamedTuple):
    """The inputs of a worker: its number, its connection to the server, the descriptor of its flight record."""

    number: int
    connection: socket.socket
    record: int


class WorkerState(NamedTuple):
    """State of a forked worker, for the server.

    `status`: the exit status, or a signal's number below zero; None while it runs.
    """

    number: int
    process: int
    status: int | None = None


def receive_place(control: socket.socket) -> Place | None:
    """Waits until a worker is requested; returns None if no more will be."""
    message, descriptors, _, _ = socket.recv_fds(control, NUMBER.size, NUM_DESCRIPTORS)
    if not message:
        return None
    (number,), (connection, record) = NUMBER.unpack(message), descriptors
    return Place(number, socket.socket(fileno=connection), record)


def set_oom_score(score: str) -> str:
    """Sets how soon the kernel ends this process when memory runs out; returns the former score."""
    before = ""
    with suppress(OSError):
        before = OOM_SCORE.read_text()
        OOM_SCORE.write_text(score)
    return before


def forked(control: socket.socket, oom_score: str) -> Place | None:
    """Forks a process for each worker that is requested.

    Args:
        oom_score: of the process that forks: if it ends, so do all workers.

    Returns:
        In each new process, its place. In the process that forks, None, after all workers have ended and no more will
        be requested.
    """
    set_oom_score(oom_score)
    # A collection would write to all that has been loaded, and each process would get pages of its own.
    gc.collect()
    gc.freeze()
    poll = select.poll()
    poll.register(control, select.POLLIN)
    workers: dict[int, WorkerState] = {}  # by the end of a pipe whose other end only this worker's process holds
    is_open = True
    while is_open or workers:
        for descriptor, _ in poll.poll():
            if descriptor in workers:
                worker = workers.pop(descriptor)
                poll.unregister(descriptor)
                os.close(descriptor)
                _, status = os.waitpid(worker.process, 0)
                _report(control, worker._replace(status=os.waitstatus_to_exitcode(status)))
            elif (place := receive_place(control)) is None:
                poll.unregister(control)
                is_open = False
            else:
                ended, held = os.pipe()
                process = _fork()
                if process == 0:  # `held` stays open until it ends
                    control.close()
                    for other in (ended, *workers):
                        os.close(other)
                    return place
                os.close(held)
                place.connection.close()
                os.close(place.record)
                if process is None:
                    os.close(ended)
                    continue
                workers[ended] = WorkerState(place.number, process)
                poll.register(ended)
                _report(control, workers[ended])
    return None


def _fork() -> int | None:
    """Returns zero in the new process and its id in the old one, or None if there can be no more processes now."""
    parent = os.getpid()
    try:
        process = os.fork()
    except OSError as error:
        log.error("a worker process can't be started", extra={"why": error.strerror})
        return None
    if process == 0:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)
        set_oom_score(WORKER_OOM_SCORE)
    return process


def _report(control: socket.socket, state: WorkerState) -> None:
    with suppress(OSError):  # the server has gone
        control.sendall(framed(state))


END_SECONDS = 2.0
"""Time that workers get to end after their connections were closed: for the step under way, or their loading."""


class _Process:
    """A process that loads a bundle, and then is its worker, or forks its workers (`forked`)."""

    def __init__(self, config: ServerConfig) -> None:
        """Starts a process that loads the only bundle of this configuration; it forks if there are several workers."""
        self.forks = config.workers > 1
        self._states: dict[int, WorkerState] = {}
        self._frames = Frames()
        self._control, theirs = socket.socketpair()
        command = [sys.executable, "-m", "attendant.server.worker_main", str(theirs.fileno())]
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, SERVER_SIGNALS)
        try:
            with theirs:
                self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        # If it has ended already, the workers' connections are closed, which is noticed.
        with suppress(OSError):
            self._control.sendall(framed(config))
        self._control.setblocking(False)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def request_worker(self, number: int, connection: socket.socket, record: int) -> None:
        with suppress(OSError):  # the process has gone
            socket.send_fds(self._control, [NUMBER.pack(number)], [connection.fileno(), record])

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
    """A process that loads a bundle, and reports the result at the other end of the connection."""

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
        """Ends the process at once, even if it is stopped."""
        self._process.kill(self._number)

    def ending(self) -> str:
        """Returns how the process ended, for the log; an empty string while it runs."""
        status = self._process.status(self._number)
        if status is None:
            return ""
        return f"status {status}" if status >= 0 else f"signal {signal.Signals(-status).name}"


class WorkerGroup:
    """The workers of one version of a model. Those with one thread each share the memory of the bundle."""

    def __init__(self, config: ServerConfig, begin: Callable[[ServerConfig], _Process]) -> None:
        """Makes a group without workers; `config.workers` is the number of workers that share memory."""
        self._config = config
        self._begin = begin
        self._numbers = itertools.count()
        self._processes: list[_Process] = []

    def start(self) -> WorkerProcess:
        """Starts a worker, which loads the bundle or is forked from the process that loads it."""
        self._processes = [process for process in self._processes if process.is_running]
        if not self._processes or not self._processes[-1].forks:
            self._processes.append(self._begin(self._config))
        return WorkerProcess(self._processes[-1], next(self._numbers), self._config.max_rows)

    def close(self) -> None:
        """Lets the processes end, because no more workers will be started."""
        for process in self._processes:
            process.hang_up()


class WorkerProcesses:
    """All workers of a server, and the rows that they share; a context manager that ends them."""

    def __init__(self, config: ServerConfig) -> None:
        self.rows = SharedRows(config.workers * config.max_rows)
        self._config = config
        self._processes: list[_Process] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        for process in self._processes:
            process.hang_up()
        # All of them have the same time: workers that hang must not add up.
        give_up = time.monotonic() + END_SECONDS
        for process in self._processes:
            process.wait(max(0.0, give_up - time.monotonic()))

    def group(self, bundle: Path, num_models: int) -> WorkerGroup:
        """Returns a group of workers for a bundle, none of them started.

        Args:
            num_models: they and their workers share the threads. Versions of a model share its requests, so they are
                not counted: each may use the model's threads.
        """
        config = self._config
        threads = max(1, (config.threads or available_cpus()) // (num_models * config.workers))
        # Loading starts threads if there are several, or a GPU; a forked process would not have them.
        workers = config.workers if threads == 1 and config.provider == "cpu" else 1
        return WorkerGroup(replace(config, bundles=(bundle,), threads=threads, workers=workers), self._begin)

    def _begin(self, config: ServerConfig) -> _Process:
        for process in [process for process in self._processes if not process.is_running]:
            process.wait(0.0)
            self._processes.remove(process)
        self._processes.append(_Process(config))
        return self._processes[-1]
