"""Watching trainings from outside: one clock for all toolkits, whatever they say of their own speed."""

import shutil
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness.measurement import Samples, System, Visits
from benchmarks.harness.process import Process
from benchmarks.training.toolkits import Toolkit, Training

POLL_SECONDS = 0.02
START_SECONDS = 300.0
NUM_WARM_UP_WINDOWS = 2
MIN_WINDOWS = 2


class Reading(NamedTuple):
    """The clocks at a line of progress: steps done, seconds, and processor seconds of the process."""

    step: int
    moment: float
    cpu_seconds: float


def system_of(toolkit: Toolkit, training: Training, seconds: float, cache: Path) -> System:
    """A system whose visits are trainings from their start.

    Args:
        seconds: of one visit, its start included; longer where fewer than MIN_WINDOWS windows came by.
        cache: the folder of the environments.
    """

    def start() -> Iterator[Visits]:
        python = toolkit.python(cache)
        yield {"": lambda number: _train(toolkit, training, python, seconds)}

    name = f"{toolkit.name} {training.precision}"
    return System(key=name.lower().replace(" ", "_"), name=name, start=start)


def _train(toolkit: Toolkit, training: Training, python: str, seconds: float) -> Samples:
    """Trains for so long. A sample per window: target tokens per second, and per second of processor time of all
    threads together, which is the figure to compare on a busy machine.

    Raises:
        Unavailable: the toolkit stopped by itself. Its partial figures are none.
    """
    shutil.rmtree(training.folder, ignore_errors=True)
    arguments = toolkit.configure(training)
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(training.num_threads))
    with Process([python, *arguments], threads) as process:
        readings = list(_readings(toolkit, training, process, seconds))
        if len(readings) < NUM_WARM_UP_WINDOWS + MIN_WINDOWS:
            raise process.failure()
        num_parameters = toolkit.num_parameters(process.said())
    samples: dict[str, list[float]] = {"speed": [], "cpu_speed": []}
    for begin, end in pairwise(readings[NUM_WARM_UP_WINDOWS - 1 :]):
        num_tokens = training.workload.batch_tokens * (end.step - begin.step)
        samples["speed"].append(num_tokens / (end.moment - begin.moment))
        samples["cpu_speed"].append(num_tokens / (end.cpu_seconds - begin.cpu_seconds))
    return samples if num_parameters is None else {**samples, "parameters": num_parameters}


def _readings(toolkit: Toolkit, training: Training, process: Process, seconds: float) -> Iterator[Reading]:
    """The clocks at each line of progress, until the visit's time is over or the training ends."""
    started, num_readings, last_step = time.monotonic(), 0, -1
    path = training.folder / toolkit.progress
    while process.is_running:
        moment = time.monotonic()
        progress = process.said() if not toolkit.progress else path.read_text() if path.exists() else ""
        if (step := toolkit.last_step(progress)) > last_step:
            last_step, num_readings = step, num_readings + 1
            yield Reading(step, moment, process.cpu_seconds())
        enough = num_readings >= NUM_WARM_UP_WINDOWS + MIN_WINDOWS
        if moment - started > (seconds if enough else max(seconds, START_SECONDS)):
            return
        time.sleep(POLL_SECONDS)
