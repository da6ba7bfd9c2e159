"""Watching trainings from outside: one clock for all toolkits, whatever they say of their own speed."""

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

POLL_SECONDS = 0.02
START_SECONDS = 300.0
NUM_WARM_UP_WINDOWS = 2
MIN_WINDOWS = 2


@dataclass(slots=True)
class Measurement:
    """What is known of one system.

    Attributes:
        speeds: target tokens per second, one entry per window.
        num_parameters: as the toolkit counts them.
        problem: why there are no speeds.
    """

    speeds: list[float] = field(default_factory=list)
    num_parameters: int | None = None
    problem: str | None = None

    @property
    def median(self) -> float | None:
        return statistics.median(self.speeds) if self.speeds else None


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
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=os.environ | threads
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
        measurement.problem = (said.strip().splitlines() or ["it said nothing"])[-1]
        return
    kept = readings[NUM_WARM_UP_WINDOWS - 1 :]
    measurement.speeds += [
        (step - previous_step) * workload.batch_tokens / (moment - previous_moment)
        for (previous_step, previous_moment), (step, moment) in zip(kept, kept[1:], strict=False)
    ]


def _readings(
    system: System, process: subprocess.Popen[bytes], folder: Path, log: Path, seconds: float
) -> Iterator[tuple[int, float]]:
    """(step, moment) of each line of progress, until the visit's time is over or the training ends."""
    started, num_readings, progress = time.monotonic(), 0, system.progress(folder, log)
    enough = NUM_WARM_UP_WINDOWS + MIN_WINDOWS
    lines = _Lines(progress, system.step_line)
    while process.poll() is None:
        moment = time.monotonic()
        for step in lines.new_steps():
            num_readings += 1
            yield step, moment
        if moment - started > (seconds if num_readings >= enough else max(seconds, START_SECONDS)):
            return
        time.sleep(POLL_SECONDS)


class _Lines:
    """The steps that a growing file tells of."""

    def __init__(self, path: Path, pattern: re.Pattern[str]) -> None:
        self._path = path
        self._pattern = pattern
        self._offset = 0

    def new_steps(self) -> list[int]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            whole_lines, newline, _ = file.read().rpartition(b"\n")
        self._offset += len(whole_lines) + len(newline)
        return [int(step) for step in self._pattern.findall(whole_lines.decode("utf-8", errors="replace"))]


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
