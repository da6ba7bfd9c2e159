"""Watching trainings from outside: one clock for all toolkits, whatever they say of their own speed."""

import itertools
import os
import re
import shutil
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.training.data import Corpus
from benchmarks.training.system import System
from benchmarks.training.workload import Workload

ROOT = Path(__file__).parents[2]
POLL_SECONDS = 0.02
START_SECONDS = 300.0
NUM_WARM_UP_WINDOWS = 2
MIN_WINDOWS = 2


@dataclass(slots=True)
class Measurement:
    """What is known of one system.

    Attributes:
        speeds: target tokens per second, one entry per window.
        processor_speeds: target tokens per second of processor time, of all threads together, likewise. On a quiet
            machine `speeds` is nearly the number of threads times as much; on a busy one it is less, and these are the
            figures to compare.
        num_parameters: as the toolkit counts them.
        problem: why there are no speeds.
    """

    speeds: list[float] = field(default_factory=list)
    processor_speeds: list[float] = field(default_factory=list)
    num_parameters: int | None = None
    problem: str | None = None

    @property
    def median(self) -> float | None:
        return statistics.median(self.speeds) if self.speeds else None

    @property
    def processor_median(self) -> float | None:
        return statistics.median(self.processor_speeds) if self.processor_speeds else None


@dataclass(frozen=True, slots=True)
class Reading:
    """The clocks at a line of progress: steps done, seconds, and processor seconds of the process."""

    step: int
    moment: float
    processor_seconds: float


def measure(
    systems: Sequence[System],
    workload: Workload,
    corpus: Corpus,
    *,
    folder: Path,
    num_rounds: int,
    visit_seconds: float,
    num_threads: int,
    announce: Callable[[str], None],
) -> list[Measurement]:
    """Visits each system once a round, so that a machine that slows down slows all of them.

    Args:
        folder: for configurations, logs and checkpoints; what an earlier measurement left there goes.
        visit_seconds: of one visit, its start included; longer where fewer than MIN_WINDOWS windows came by.
        announce: takes a line of progress.
    """
    measurements = [Measurement() for _ in systems]
    for round_number in range(1, num_rounds + 1):
        for number, (system, measurement) in enumerate(zip(systems, measurements, strict=True)):
            if measurement.problem is not None:
                continue
            place = folder / f"{number}-{system.toolkit.lower()}"
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            _visit(system, measurement, workload, corpus, place, visit_seconds, num_threads)
            said = f"{measurement.median:,.0f} tokens/s" if measurement.median is not None else measurement.problem
            announce(f"round {round_number} of {num_rounds}: {system.name}: {said}")
    return measurements


def _visit(
    system: System,
    measurement: Measurement,
    workload: Workload,
    corpus: Corpus,
    folder: Path,
    seconds: float,
    num_threads: int,
) -> None:
    log = folder / "output.txt"
    command = system.command(workload, corpus, folder, num_threads)
    threads = {name: str(num_threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | threads,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        readings = list(_readings(system, process, folder, log, seconds))
    finally:
        _stop(process)
    said = log.read_text(encoding="utf-8", errors="replace")
    found = system.parameters_line.search(said)
    measurement.num_parameters = int(found[1].replace(",", "")) if found else None
    if len(readings) < NUM_WARM_UP_WINDOWS + MIN_WINDOWS:
        # Partial figures of a system that stopped by itself are no figures.
        measurement.speeds.clear()
        measurement.processor_speeds.clear()
        measurement.problem = (said.replace(f"{folder}/", "").strip().splitlines() or ["it said nothing"])[-1]
        return
    for begin, end in itertools.pairwise(readings[NUM_WARM_UP_WINDOWS - 1 :]):
        num_tokens = (end.step - begin.step) * workload.batch_tokens
        measurement.speeds.append(num_tokens / (end.moment - begin.moment))
        measurement.processor_speeds.append(num_tokens / (end.processor_seconds - begin.processor_seconds))


def _readings(
    system: System, process: subprocess.Popen[bytes], folder: Path, log: Path, seconds: float
) -> Iterator[Reading]:
    """The clocks at each line of progress, until the visit's time is over or the training ends."""
    started, num_readings, progress = time.monotonic(), 0, system.progress(folder, log)
    enough = NUM_WARM_UP_WINDOWS + MIN_WINDOWS
    lines = _Lines(progress, system.step_line)
    while process.poll() is None:
        moment = time.monotonic()
        step = lines.last_new_step()
        if step is not None:
            num_readings += 1
            yield Reading(step, moment, _processor_seconds(process.pid))
        if moment - started > (seconds if num_readings >= enough else max(seconds, START_SECONDS)):
            return
        time.sleep(POLL_SECONDS)


class _Lines:
    """The steps that a growing file tells of."""

    def __init__(self, path: Path, pattern: re.Pattern[str]) -> None:
        self._path = path
        self._pattern = pattern
        self._offset = 0

    def last_new_step(self) -> int | None:
        if not self._path.exists():
            return None
        with self._path.open("rb") as file:
            file.seek(self._offset)
            whole_lines, newline, _ = file.read().rpartition(b"\n")
        self._offset += len(whole_lines) + len(newline)
        found = self._pattern.findall(whole_lines.decode("utf-8", errors="replace"))
        return int(found[-1]) if found else None


def _processor_seconds(pid: int) -> float:
    # man 5 proc: utime and stime, in ticks, are fields 14 and 15; the name in field 2 may contain spaces.
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
