"""A load generator seen from the benchmark: what is asked of it, and what came of it."""

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Self

import numpy as np

from benchmarks.decoding.system import ROOT
from benchmarks.serving.generator import Answered, Load
from benchmarks.serving.served import Served, ServerFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A load, and what it cost the server.

    Attributes:
        server_cpu_seconds: of all the server's processes.
    """

    answered: Answered
    server_cpu_seconds: float

    @property
    def num_answered(self) -> int:
        return len(self.answered.latencies)

    @property
    def speed(self) -> float:
        """Answers per second."""
        return self.num_answered / self.answered.seconds

    @property
    def cpu_per_answer(self) -> float:
        return self.server_cpu_seconds / self.num_answered

    def latency(self, percent: float) -> float:
        """The percentile, in seconds."""
        return float(np.percentile(self.answered.latencies, percent))


class LoadGenerator:
    """A generator process for one server; a context manager that ends it."""

    def __init__(self, served: Served, method: str | None = None) -> None:
        """Args: method: another one than the system's own, with the same requests."""
        self._served = served
        system = served.system
        module = "benchmarks.serving.generator"
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, served.target, method or system.method, str(system.payloads)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        self._line()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.communicate()

    def run(self, load: Load) -> Report:
        """Raises ServerFailed where the server refused a request or ended."""
        self.begin(load)
        return self.end()

    def begin(self, load: Load) -> None:
        """Starts a load, to be waited for by `end`."""
        self._cpu = self._served.cpu_seconds()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(load)) + "\n")
        self._process.stdin.flush()

    def end(self) -> Report:
        answered = Answered(**json.loads(self._line()))
        if answered.num_failed or not answered.latencies:
            raise ServerFailed(f"{answered.num_failed} requests failed: {answered.first_failure}")
        return Report(answered=answered, server_cpu_seconds=self._served.cpu_seconds() - self._cpu)

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ServerFailed("the load generator ended; what it said stands above")
        return line
