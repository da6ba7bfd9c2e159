"""The worker processes of one system: started once, kept warm, asked in turns with the other systems'."""

import json
import os
import subprocess
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from benchmarks.decoding.job import READY, Answer, Job, share
from benchmarks.decoding.system import KEEP_MEMORY, ROOT, System

END_SECONDS = 10.0
LAST_LINES = 3
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class WorkerFailed(Exception):
    """A worker ended before it answered; its last words."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A job that all workers of a system shared.

    Attributes:
        seconds: by the parent's clock, from the question to the last answer.
        cpu_seconds: of all workers together.
        latencies: of each batch, in seconds.
    """

    num_sentences: int
    seconds: float
    cpu_seconds: float
    latencies: list[float]

    @property
    def speed(self) -> float:
        """Sentences per second."""
        return self.num_sentences / self.seconds


class Pool:
    """A context manager: the workers end with it."""

    def __init__(self, system: System) -> None:
        self.system = system
        self._workers: list[_Worker] = []
        self._exits = ExitStack()

    def __enter__(self) -> Self:
        """Starts the workers. Raises WorkerFailed."""
        try:
            self._workers = [self._exits.enter_context(_Worker(self.system)) for _ in range(self.system.num_workers)]
            for worker in self._workers:
                worker.await_ready()
        except BaseException:
            self._exits.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._exits.close()

    def run(self, job: Job) -> Outcome:
        """Shares the job out and waits for all. Raises WorkerFailed."""
        began = time.perf_counter()
        for number, worker in enumerate(self._workers):
            worker.ask(share(job, number, len(self._workers)))
        answers = [worker.answer() for worker in self._workers]
        return Outcome(
            job.num_sentences,
            time.perf_counter() - began,
            sum(answer.cpu_seconds for answer in answers),
            [latency for answer in answers for latency in answer.latencies],
        )


class _Worker:
    def __init__(self, system: System) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # closed in __exit__
        self._process = subprocess.Popen(
            system.command,
            cwd=ROOT,
            env=os.environ | KEEP_MEMORY | dict.fromkeys(THREAD_VARIABLES, "1") | dict(system.environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.communicate(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        self._said.close()

    def await_ready(self) -> None:
        # What a toolkit prints while it is imported comes before.
        while self._line() != READY:
            pass

    def ask(self, job: Job) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(job.to_line() + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise WorkerFailed(self._last_words()) from None

    def answer(self) -> Answer:
        return Answer(**json.loads(self._line()))

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise WorkerFailed(self._last_words())
        return line

    def _last_words(self) -> str:
        self._process.wait(END_SECONDS)
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        return " / ".join(lines[-LAST_LINES:]) or f"it ended with status {self._process.returncode} and said nothing"
