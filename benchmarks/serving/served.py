"""A server as a process, from its start to its end."""

import os
import re
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.decoding.system import KEEP_MEMORY, ROOT
from benchmarks.serving.processes import cpu_seconds, resident_bytes, tree

START_SECONDS = 180.0
END_SECONDS = 20.0
LAST_LINES = 3
METRIC_LINE = re.compile(r"^(\w+)(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)


class ServerFailed(Exception):
    """A server that did not come up, or ended; its last words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedSystem:
    """How a server is started and asked.

    Attributes:
        command: run in the project's directory; prints `serving on HOST:PORT` when it is ready, and may add
            `metrics on HOST:PORT`.
        method: the full name of the unary call that the load generator makes.
        max_starts: how often a start that fails is tried.
        payloads: a file of that call's requests, one per line, in base64.
        keeps_memory: whether glibc is told to keep what is freed (KEEP_MEMORY), as in all that is timed.
    """

    name: str
    command: Sequence[str]
    method: str
    payloads: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    max_starts: int = 1
    keeps_memory: bool = True
    about: str = ""


class Served:
    """A running server; a context manager that ends it."""

    def __init__(self, system: ServedSystem) -> None:
        self.system = system
        self.target = ""
        self._metrics_target = ""
        self._output: Any
        self._process: subprocess.Popen[bytes]
        self._pids: list[int] = []

    def __enter__(self) -> Self:
        """Waits until it serves. Raises ServerFailed."""
        for _ in range(self.system.max_starts - 1):
            with suppress(ServerFailed):
                return self._start()
        return self._start()

    def _start(self) -> Self:
        self._output = tempfile.NamedTemporaryFile(prefix="attendant-served-")  # noqa: SIM115  # closed in _end
        self._process = subprocess.Popen(
            self.system.command,
            cwd=ROOT,
            env=os.environ | (KEEP_MEMORY if self.system.keeps_memory else {}) | dict(self.system.environment),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )
        try:
            self._await_address()
        except BaseException:
            self._end()
            raise
        self._pids = tree(self._process.pid)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()

    def cpu_seconds(self) -> float:
        """Of all its processes, since their start."""
        return cpu_seconds(self._pids)

    def resident_bytes(self) -> int:
        return resident_bytes(self._pids)

    def metrics(self) -> dict[str, float]:
        """The samples of its metrics, added up over their labels but for a phase's and a bucket's."""
        with urllib.request.urlopen(f"http://{self._metrics_target}/metrics") as response:
            text = response.read().decode()
        found: dict[str, float] = {}
        for name, labels, value in METRIC_LINE.findall(text):
            kept = [label for label in labels.split(",") if label.startswith(("phase=", "le="))]
            key = f"{name}{{{','.join(kept)}}}" if kept else name
            found[key] = found.get(key, 0.0) + float(value)
        return found

    def _await_address(self) -> None:
        give_up = time.monotonic() + START_SECONDS
        while time.monotonic() < give_up:
            said = self._said()
            if found := re.search(r"^serving on ([^\s,:]+:\d+)", said, re.MULTILINE):
                self.target = found[1]
                metrics = re.search(r"metrics on (\S+:\d+)", said)
                self._metrics_target = metrics[1] if metrics else ""
                return
            if self._process.poll() is not None:
                break
            time.sleep(0.05)
        raise ServerFailed(" / ".join(self._said().strip().splitlines()[-LAST_LINES:]) or "it said nothing")

    def _said(self) -> str:
        return Path(self._output.name).read_text(encoding="utf-8", errors="replace")

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()


def mean_between(name: str, before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """The mean of what a histogram took in between two readings of `Served.metrics`."""
    count, total = (after[f"{name}_{part}"] - before.get(f"{name}_{part}", 0.0) for part in ("count", "sum"))
    return total / count
