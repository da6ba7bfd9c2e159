"""A program that is measured, as a process: started, asked, watched from outside, ended."""

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Self

import psutil

from attendant.server.bench.command import resident_bytes as resident_of
from benchmarks import ROOT
from benchmarks.harness.measurement import Unavailable
from benchmarks.job import READY

END_SECONDS = 20.0
LAST_LINES = 3

KEEP_MEMORY: Final = {
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
    "MALLOC_TOP_PAD_": str(2**26),
}
"""glibc keeps what is freed, in every system alike: CTranslate2 needs a quarter less processor time so."""


class Process:
    """A context manager that ends the program."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, *, answers: bool = False
    ) -> None:
        """Starts the program in the project's folder.

        Args:
            environment: variables beside this process's own.
            answers: it is asked through its standard input and answers on its standard output, a line of JSON each.
        """
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed in __exit__
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | dict(environment or {}),
            stdin=subprocess.PIPE if answers else subprocess.DEVNULL,
            stdout=subprocess.PIPE if answers else self._log,
            stderr=self._log,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.communicate(timeout=END_SECONDS)
        self._process.kill()
        self._process.communicate()
        self._log.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def await_ready(self) -> None:
        """Waits for the line that says so; what a toolkit prints while it is imported comes before it."""
        while self._line() != READY:
            pass

    def ask(self, question: object) -> None:
        """Sends a question, to be waited for by `answer`. Raises Unavailable where the program has ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self.failure() from None

    def answer(self) -> Any:
        """The answer to the oldest open question. Raises Unavailable where the program has ended."""
        return json.loads(self._line())

    def said(self) -> str:
        """What it has printed, but for answers."""
        # Not sought: the position of a shared file is where the program writes on.
        return os.pread(self._log.fileno(), 1 << 24, 0).decode(errors="replace")

    def failure(self) -> Unavailable:
        """Its last words."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        words = last_words(self.said())
        return Unavailable(words or f"it said nothing; its exit status: {self._process.returncode}")

    def cpu_seconds(self) -> float:
        """Processor time of it and all that it has started and still runs."""
        return cpu_seconds(tree(self._process.pid))

    def resident_bytes(self) -> float:
        return resident_bytes(tree(self._process.pid))

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self.failure()
        return line


def output_of(command: Sequence[str]) -> str:
    """What a program prints. Raises Unavailable with its last words where it fails."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(last_words(done.stdout + done.stderr))
    return done.stdout


def last_words(said: str) -> str:
    return " / ".join(said.strip().splitlines()[-LAST_LINES:])


def tree(pid: int) -> list[psutil.Process]:
    """The process and its descendants."""
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def cpu_seconds(processes: Sequence[psutil.Process]) -> float:
    """Processor time of all of them together, in user and in kernel mode."""
    return _total(processes, lambda process: sum(process.cpu_times()[:2]))


def resident_bytes(processes: Sequence[psutil.Process]) -> float:
    """Resident memory of all of them together, as `attendant bench` counts it."""
    return _total(processes, lambda process: resident_of(process.pid))


def _total(processes: Sequence[psutil.Process], figure: Callable[[psutil.Process], float]) -> float:
    total = 0.0
    for process in processes:
        with suppress(psutil.Error, OSError):  # who has ended counts for nothing
            total += figure(process)
    return total
