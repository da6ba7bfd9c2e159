"""Measures systems in turns, runs their processes, and installs the environments of the peers.

If the machine slows down during a measurement, turns slow all systems alike.
"""

import fcntl
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path
from string import Template
from typing import Any, Final, Self

import psutil

from attendant.runtime.errors import UserError
from benchmarks import DATA, ROOT
from benchmarks.job import READY
from benchmarks.results import Cell, Part

END_SECONDS = 20.0
KEEP_MEMORY: Final = {
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
    "MALLOC_TOP_PAD_": str(2**26),
}
"""glibc keeps freed memory, in every system: it saves CTranslate2 a quarter of its processor time."""

Samples = Mapping[str, float | list[float]]
"""One or several samples of each figure. The first figure is shown while the benchmark runs."""

Visit = Callable[[int], Samples]
"""Measures a running system once. Takes the number of the round, from 1, which is also a seed. May return nothing."""

Visits = Mapping[str, Visit]
"""The visits of a round by their names: one for each load or size."""


class Unavailable(UserError):
    """A system can't be installed, did not start, or failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A toolkit, server or engine with its settings.

    Attributes:
        name: name of its row in the table.
        start: a generator that installs and starts the system and warms it up, yields its visits, and stops it. Raises
            Unavailable.
        about: version, and how its model or its work differs from the others'.
    """

    name: str
    start: Callable[[], Iterator[Visits]]
    about: str = ""


@dataclass(slots=True)
class Measurement:
    """The samples of one visit of a system over all rounds, or the reason why the system has none."""

    system: System
    point: str = ""
    samples: dict[str, list[float]] = field(default_factory=dict)
    problem: str = ""

    def median(self, figure: str) -> float:
        """Raises Unavailable if the system failed, KeyError if it has no such figure."""
        if self.problem:
            raise Unavailable(f"{self.system.name}: {self.problem}")
        return statistics.median(self.samples[figure])


def log_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def measure(systems: Sequence[System], num_rounds: int) -> list[Measurement]:
    """Starts all systems, then makes the visits of each once a round, in turns and in their order.

    Returns:
        In the order of the systems: all visits that have samples, or the problem of a system that failed.
    """
    visits: list[list[tuple[Measurement, Visit]]] = []
    problems: dict[System, str] = {}

    @contextmanager
    def noting_failure(system: System) -> Iterator[None]:
        try:
            yield
        except Unavailable as error:
            problems[system] = str(error)
            log_line(f"{system.name}: {error}")

    with ExitStack() as exits:
        for system in systems:
            with noting_failure(system):
                started = exits.enter_context(contextmanager(system.start)())
                visits.append([(Measurement(system, point), visit) for point, visit in started.items()])
        in_turns = [pair for turn in zip_longest(*visits) for pair in turn if pair is not None]
        for number in range(1, num_rounds + 1):
            for measurement, visit in in_turns:
                if measurement.system in problems:
                    continue
                with noting_failure(measurement.system):
                    for figure, value in visit(number).items():
                        values = value if isinstance(value, list) else [value]
                        measurement.samples.setdefault(figure, []).extend(values)
                    first = [f"{figure} {values[-1]:,.4g}" for figure, values in measurement.samples.items()][:1]
                    name = ", ".join(filter(None, [measurement.system.name, measurement.point]))
                    log_line(" ".join([f"round {number} of {num_rounds}: {name}:", *first]))
    measured = [each for pairs in visits for each, _ in pairs if each.samples and each.system not in problems]
    failed = [Measurement(system, problem=problem) for system, problem in problems.items()]
    return sorted([*measured, *failed], key=lambda each: systems.index(each.system))


Columns = Mapping[str, str | Callable[[Measurement], Cell]]
"""By the titles of columns: the figure whose median is the cell, or a function that makes the cell. A cell whose figure
was not measured is empty."""


def spread(m: Measurement) -> Cell:
    """Returns the least and the greatest speed."""
    speeds = m.samples.get("speed")
    return f"{min(speeds):,.0f}-{max(speeds):,.0f}" if speeds else None


COLUMNS: Columns = {
    "work": lambda m: m.point,
    "per second": "speed",
    "slowest-fastest": spread,
    "ms": "ms",
    "p50 ms": "p50",
    "p99 ms": "p99",
    "first token p50 ms": "first_p50",
    "first token p99 ms": "first_p99",
    "CPU ms each": "cpu_ms",
    "batch": lambda m: f"{m.median('batch'):.0f}" if "batch" in m.samples else None,
    "rows per step": "step_rows",
    "padding waste": lambda m: f"{100 * (1 - m.median('efficiency')):.0f} %" if "efficiency" in m.samples else None,
    "remarks": lambda m: m.system.about,
}
"""The figures of decoders and servers."""


def part_of(measurements: Sequence[Measurement], columns: Columns = COLUMNS, note: str = "") -> Part:
    """Returns a table with a row for each measurement, without empty columns.

    The row of a system that failed has the reason in the last column.
    """
    rows: list[list[Cell]] = []
    for m in measurements:
        row: list[Cell] = [m.system.name]
        for column in columns.values():
            if m.problem:
                row.append(None)
            elif callable(column):
                row.append(column(m))
            else:
                row.append(m.median(column) if column in m.samples else None)
        if m.problem:
            row[-1] = f"not measured: {m.problem}"
        rows.append(row)
    titles = ["system", *columns]
    kept = [number for number in range(len(titles)) if any(row[number] not in (None, "") for row in rows)]
    rows = [[row[number] for number in kept] for row in rows]
    return Part(columns=[titles[number] for number in kept], rows=rows, note=note)


class Process:
    """A context manager that runs a program in the project's folder."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, *, answers: bool = False
    ) -> None:
        """Starts the program. If it `answers`, it does as `job.answer_questions`."""
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
        self.pid = self._process.pid

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
    def is_running(self) -> bool:
        return self._process.poll() is None

    def await_ready(self) -> None:
        """Waits for READY, after any lines that a toolkit prints while it is imported. Raises Unavailable."""
        while self._line() != READY:
            pass

    def ask(self, question: object) -> None:
        """Sends a question, which `answer` waits for. Raises Unavailable if the program has ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self.failure() from None

    def answer(self) -> Any:
        """Returns the answer to the oldest open question. Raises Unavailable if the program has ended."""
        return json.loads(self._line())

    def output(self) -> str:
        """Returns all that the program has printed, except answers."""
        # No seek: the program writes at the position of the shared file.
        return os.pread(self._log.fileno(), 1 << 24, 0).decode(errors="replace")

    def failure(self) -> Unavailable:
        """Returns an error with the program's last lines."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        return Unavailable(_last_lines(self.output()) or f"no output; exit status {self._process.returncode}")

    def cpu_seconds(self) -> float:
        """Returns the processor time of its running processes, in user and kernel mode."""
        total = 0.0
        for process in tree(self.pid):
            with suppress(psutil.Error):  # it has ended meanwhile
                total += sum(process.cpu_times()[:2])
        return total

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self.failure()
        return line


def output_of(command: Sequence[str]) -> str:
    """Runs a program; returns its standard output. Raises Unavailable with its last lines if it fails."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(_last_lines(done.stdout + done.stderr))
    return done.stdout


def _last_lines(output: str) -> str:
    return " / ".join(output.strip().splitlines()[-3:])


def tree(pid: int) -> list[psutil.Process]:
    """Returns the process and its descendants."""
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A peer's environment: an entry of environments.toml.

    Attributes:
        installs: arguments of each `pip install`; the last one is the peer with its version.
        interpreters: the first that exists and runs makes the environment; if empty, this Python. Names are looked up
            on the path, then among pyenv's versions.
    """

    name: str
    installs: Sequence[Sequence[str]]
    interpreters: Sequence[str] = ()

    @property
    def package(self) -> str:
        return self.installs[-1][-1]

    def install(self, cache: Path) -> Path:
        """Returns the environment's interpreter; makes the environment if it is not complete in the cache.

        Raises:
            Unavailable: there is no such Python, or pip fails.
        """
        folder = cache / self.name
        python, done = folder / "bin" / "python", folder / "installed.txt"
        wanted = json.dumps(self.installs)
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / f"{self.name}.lock").open("w") as lock:
            # Tests in several processes install the same environments.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists() or done.read_text(encoding="utf-8") != wanted:
                output_of([self._interpreter(), "-m", "venv", "--clear", str(folder)])
                for arguments in self.installs:
                    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
                    output_of([*pip, *arguments])
                done.write_text(wanted, encoding="utf-8")
        return python

    def _interpreter(self) -> str:
        pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
        for name in self.interpreters or [sys.executable]:
            for path in (shutil.which(name), *map(str, sorted(pyenv.glob(f"versions/*/bin/{name}")))):
                # pyenv's launchers are on the path for versions that are not installed, too.
                if path and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
                    return path
        raise Unavailable(f"it needs one of {', '.join(self.interpreters)}, and none is here")


TORCH = f"torch=={version('torch').partition('+')[0]}"
ENVIRONMENTS = {
    name: Environment(name=name, **entry)
    for name, entry in tomllib.loads(
        Template((DATA / "environments.toml").read_text(encoding="utf-8")).substitute(torch=TORCH)
    ).items()
}
