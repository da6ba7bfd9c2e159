"""One process loads a bundle, and forks the workers that decode it: they share what it has loaded.

The weights stand in memory once, however many workers there are, and so they do in the processor's last cache: with
weights of their own, two workers read them from memory where one would find them in the cache. Only the thread that
forks lives on in the new process, and ONNX Runtime would wait for its others for ever: so this is for workers with one
thread each, for which it starts none.

The server asks for each worker on the control socket, with the descriptors of what the worker is given; it is told of
each worker's process, and how that has ended.
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
FIRST_TO_GO = "500"
"""When memory runs out, the kernel ends a worker rather than the server, which starts another one."""


class Place(NamedTuple):
    """What a worker is given.

    Attributes:
        number: by which the server speaks of it.
        connection: to the server.
        record: a descriptor of the flight record's memory.
    """

    number: int
    connection: socket.socket
    record: int


class WorkerState(NamedTuple):
    """What the server is told of a forked worker: its process, and how that has ended; None: it runs.

    `status`: the exit status, or a signal's number below zero.
    """

    number: int
    process: int
    status: int | None = None


def send_place(control: socket.socket, number: int, connection: socket.socket, record: int) -> None:
    """Asks for a worker. Raises OSError where the other end has gone."""
    socket.send_fds(control, [NUMBER.pack(number)], [connection.fileno(), record])


def receive_place(control: socket.socket) -> Place | None:
    """Waits until a worker is asked for; None: no more will be."""
    asked, descriptors, _, _ = socket.recv_fds(control, NUMBER.size, NUM_DESCRIPTORS)
    if not asked:
        return None
    (number,), (connection, record) = NUMBER.unpack(asked), descriptors
    return Place(number, socket.socket(fileno=connection), record)


def set_oom_score(score: str) -> str:
    """Says how soon the kernel ends this process when memory runs out; returns what was said before."""
    before = ""
    with suppress(OSError):
        before = OOM_SCORE.read_text()
        OOM_SCORE.write_text(score)
    return before


def forked(control: socket.socket, oom_score: str) -> Place | None:
    """Forks a process for each worker that is asked for.

    Args:
        oom_score: of the process that forks: if it goes, so do all workers.

    Returns:
        In each new process, what it is given. In the one that forks: None, once no more are asked for and all have
        ended.
    """
    set_oom_score(oom_score)
    # What is there stays: a collection would write to all of it, and each process would get pages of its own.
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
                _tell(control, worker._replace(status=os.waitstatus_to_exitcode(status)))
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
                _tell(control, workers[ended])
    return None


def _fork() -> int | None:
    """Zero in the new process; elsewhere its id, or None where there can be no more processes now."""
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
        set_oom_score(FIRST_TO_GO)
    return process


def _tell(control: socket.socket, state: WorkerState) -> None:
    with suppress(OSError):  # nobody asks any more
        control.sendall(framed(state))
