"""A program that is measured, as a process: started, asked, watched from outside, ended."""

import json
import os
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from benchmarks.harness.measurement import Unavailable
from benchmarks.job import READY

ROOT: Final = Path(__file__).parents[2]
END_SECONDS = 20.0
LAST_LINES = 3
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

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
        try:
            self._process.communicate(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        self._log.close()

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
        words = " / ".join(self.said().strip().splitlines()[-LAST_LINES:])
        return Unavailable(words or f"it said nothing; its exit status: {self._process.returncode}")

    def cpu_seconds(self) -> float:
        """Processor time of it and all that it has started and still runs."""
        return cpu_seconds(tree(self._process.pid))

    def resident_bytes(self) -> int:
        return resident_bytes(tree(self._process.pid))

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self.failure()
        return line


def tree(root: int) -> list[int]:
    """The process and its descendants."""
    children = defaultdict(list)
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and (fields := _fields(int(path.name))):
            children[int(fields[1])].append(int(path.name))
    found = [root]
    for pid in found:
        found += children[pid]
    return found


def cpu_seconds(pids: list[int]) -> float:
    """Processor time of all of them together, in user and in kernel mode; to a hundredth of a second each."""
    return sum((int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND for fields in map(_fields, pids) if fields)


def resident_bytes(pids: list[int]) -> int:
    """Resident memory of all of them together; what they share counts for each."""
    return sum(int(fields[21]) * PAGE_BYTES for fields in map(_fields, pids) if fields)


def _fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on, the state; none where the process has ended."""
    try:
        # The name, the second one, may have spaces in it.
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2].split()
    except OSError:
        return []
