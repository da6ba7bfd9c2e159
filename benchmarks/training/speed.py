"""How fast Attendant trains, beside JoeyNMT and OpenNMT-py: watched from outside, by one clock for all of them."""

import argparse
import os
import shutil
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from benchmarks.command import Context
from benchmarks.harness.measurement import Columns, Samples, System, Visits, measure, part_of, spread_of
from benchmarks.harness.process import Process
from benchmarks.harness.results import Part
from benchmarks.training.toolkits import TOOLKITS, Toolkit, Training, write_corpus

NUM_ROUNDS = 3
POLL_SECONDS = 0.02
START_SECONDS = 300.0
NUM_WARM_UP_WINDOWS = 2
MIN_WINDOWS = 2
PEERS = [name for name in TOOLKITS if name != "attendant"]
ABOUT = (Path(__file__).parent / "about.md").read_text(encoding="utf-8") + "\n".join(
    f"* {one.name}: {one.differences}." for one in TOOLKITS.values()
)


def input_feeding(context: Context) -> Part:
    """With input feeding."""
    return _part(context, input_feeding=True)


def no_input_feeding(context: Context) -> Part:
    """Without input feeding."""
    return _part(context, input_feeding=False)


def _part(context: Context, *, input_feeding: bool) -> Part:
    num_threads = len(os.sched_getaffinity(0))
    toolkits = [TOOLKITS[name] for name in [*context.options.peers, "attendant"]]
    pairs = [(toolkit, precision) for toolkit in toolkits for precision in toolkit.precisions]
    # The minutes are for both parts.
    seconds = 60 * context.options.minutes / (2 * NUM_ROUNDS * len(pairs))
    corpus = write_corpus(context.workload, context.cache / "data")
    systems = []
    for toolkit, precision in pairs:
        training = Training(
            workload=context.workload,
            corpus=corpus,
            folder=context.cache / "runs" / f"{toolkit.name.lower()}-{precision}",
            input_feeding=input_feeding,
            precision=precision,
            num_threads=num_threads,
        )
        systems.append(system_of(toolkit, training, seconds, context.cache))
    found = measure(systems, num_rounds=NUM_ROUNDS, say=context.say)
    peers = [one.median("speed") for one in found if one.samples and not one.system.key.startswith("attendant")]
    columns: Columns = {
        "tokens/s": lambda one: f"{one.median('speed'):,.0f}",
        "to the faster peer": lambda one: f"{one.median('speed') / max(peers):.2f}" if peers else None,
        "slowest-fastest": spread_of("speed"),
        "windows": lambda one: str(len(one.samples["speed"])),
        "tokens/processor s": lambda one: f"{one.median('cpu_speed'):,.0f}",
        "parameters": lambda one: f"{one.median('parameters') / 1e6:.2f} M",
    }
    versions = ", ".join(f"{one.name} {one.version}" for one in toolkits)
    return part_of(found, columns, note=f"{versions}. Threads of each: {num_threads}.")


def peer_names(text: str) -> list[str]:
    """Those of --peers, with commas between them. Raises ArgumentTypeError."""
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in PEERS:
            raise argparse.ArgumentTypeError(f"there is no {name!r}; known: {', '.join(PEERS)}")
    return names


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
    speeds, cpu_speeds = [], []
    for begin, end in pairwise(readings[NUM_WARM_UP_WINDOWS - 1 :]):
        num_tokens = training.workload.batch_tokens * (end.step - begin.step)
        speeds.append(num_tokens / (end.moment - begin.moment))
        cpu_speeds.append(num_tokens / (end.cpu_seconds - begin.cpu_seconds))
    return {"speed": speeds, "cpu_speed": cpu_speeds, "parameters": num_parameters}


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
