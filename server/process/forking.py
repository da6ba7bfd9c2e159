"""Forking of workers by the process that has loaded their bundle, so that they share its memory.

The weights are in memory once, whatever the number of workers, and so they are in the processor's last cache: with
weights of their own, two workers read them from memory where one would find them in the cache. Only the thread that
forks lives on in the new process, and ONNX Runtime would wait indefinitely for the others. So this is for workers with
one thread each, for which it starts no others.

The server requests each worker on the control socket, with the descriptors that the worker gets. It receives each
worker's process id, and later how that process ended.
"""

import ctypes
import gc
import logging
import os
import select
import signal
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from attendant.server.engine.protocol import framed

log = logging.getLogger(__name__)

NUMBER = struct.Struct("<I")
NUM_DESCRIPTORS = 2
PR_SET_PDEATHSIG = 1

OOM_SCORE = Path("/proc/self/oom_score_adj")
WORKER_OOM_SCORE = "500"
"""When memory runs out, the kernel ends a worker rather than the server, which starts another one."""


class Place(NamedTuple):
    """The inputs of a worker.

    Attributes:
        number: the server's name for the worker.
        connection: to the server.
        record: a descriptor of the flight record's memory.
    """

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


def send_place(control: socket.socket, number: int, connection: socket.socket, record: int) -> None:
    """Requests a worker. Raises OSError if the other end has gone."""
    socket.send_fds(control, [NUMBER.pack(number)], [connection.fileno(), record])


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
