"""Open and closed loads that a separate process sends: benchmarks/programs.py, called by a test."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict

import numpy as np

from attendant.server.bench.load import Answered, Load
from attendant_client.v1 import seq2seq_pb2 as messages
from benchmarks.harness import Process
from benchmarks.servers import load_generator


class Caller:
    """A load generator: one connection to a server, and its requests."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def give_way(self) -> None:
        """Lowers the process's priority below the server's, since real callers run on other machines.

        Must be called before the first load.
        """
        os.setpriority(os.PRIO_PROCESS, self._process.pid, 19)

    def begin(self, load: Load) -> None:
        """Starts a load; `end` waits for it."""
        self._process.ask(asdict(load))

    def end(self) -> Answered:
        return Answered(**self._process.answer())

    def call(self, load: Load) -> Answered:
        self.begin(load)
        return self.end()


@contextmanager
def caller(target: str, requests: Sequence[messages.GenerateRequest]) -> Iterator[Caller]:
    """Calls Generate with these requests in turn."""
    with load_generator(target, [request.SerializeToString() for request in requests]) as process:
        yield Caller(process)


def milliseconds(seconds: Sequence[float], percentile: float) -> float:
    """Returns the percentile in milliseconds, or 0 if there are no values."""
    return 1e3 * float(np.percentile(seconds, percentile)) if seconds else 0.0
