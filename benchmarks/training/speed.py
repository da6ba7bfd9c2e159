"""How fast Attendant trains, beside JoeyNMT and OpenNMT-py: watched from outside, by one clock for all of them."""

import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from string import Template
from typing import NamedTuple

from benchmarks.command import Context
from benchmarks.harness.measurement import Columns, Samples, System, Visits, measure, part_of, spread_of
from benchmarks.harness.process import Process
from benchmarks.harness.results import Part
from benchmarks.training.toolkits import TOOLKITS, Toolkit, write_corpus
from benchmarks.workload import Workload

NUM_ROUNDS = 3
POLL_SECONDS = 0.02
MANY_STEPS = 1_000_000
"""No training comes to its end: it is stopped when it was watched long enough."""

START_SECONDS = 300.0
NUM_WARM_UP_WINDOWS = 2
MIN_WINDOWS = 2
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
    pairs = [(toolkit, precision) for toolkit in TOOLKITS.values() for precision in toolkit.precisions]
    # The minutes are for both parts.
    seconds = 60 * context.options.minutes / (2 * NUM_ROUNDS * len(pairs))
    corpus = write_corpus(context.workload, context.cache / "data")
    trainings = [
        Training(
            toolkit=toolkit,
            workload=context.workload,
            corpus=corpus,
            folder=context.cache / "runs" / f"{toolkit.name.lower()}-{precision}",
            input_feeding=input_feeding,
            precision=precision,
            num_threads=num_threads,
            seconds=seconds,
        )
        for toolkit, precision in pairs
    ]
    found = measure([training.system(context.cache) for training in trainings], NUM_ROUNDS)
    peers = [one.median("speed") for one in found if one.samples and not one.system.key.startswith("attendant")]
    columns: Columns = {
        "tokens/s": lambda one: f"{one.median('speed'):,.0f}",
        "to the faster peer": lambda one: f"{one.median('speed') / max(peers):.2f}" if peers else None,
        "slowest-fastest": spread_of("speed"),
        "windows": lambda one: str(len(one.samples["speed"])),
        "tokens/processor s": lambda one: f"{one.median('cpu_speed'):,.0f}",
        "parameters": lambda one: f"{one.median('parameters') / 1e6:.2f} M",
    }
    versions = ", ".join(f"{one.name} {one.version}" for one in TOOLKITS.values())
    return part_of(found, columns, note=f"{versions}. Threads of each: {num_threads}.")


class Reading(NamedTuple):
    """The clocks at a line of progress: steps done, seconds, and processor seconds of the process."""

    step: int
    moment: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A toolkit that trains the workload, from the start at each visit.

    Attributes:
        corpus: the folder of its files (`write_corpus`).
        folder: for the configuration, logs and checkpoints.
        input_feeding: whether a decoder step needs the attention of the one before (Luong et al. 2015, section 3.3).
        precision: "fp32", or "bf16": automatic mixed precision.
        seconds: of a visit, its start included; longer where fewer than MIN_WINDOWS windows came by.
    """

    toolkit: Toolkit
    workload: Workload
    corpus: Path
    folder: Path
    input_feeding: bool = True
    precision: str = "fp32"
    num_threads: int = 1
    seconds: float

    def system(self, cache: Path) -> System:
        """`cache`: the folder of the environments."""

        def start() -> Iterator[Visits]:
            python = self.toolkit.python(cache)
            yield {"": lambda number: self._visit(python)}

        name = f"{self.toolkit.name} {self.precision}"
        return System(key=name.lower().replace(" ", "_"), name=name, start=start)

    def configure(self) -> list[str]:
        """Writes the configuration into the folder; the arguments of the toolkit's Python."""
        workload = self.workload
        values = {
            **asdict(workload),
            **asdict(self),
            "input_feeding": str(self.input_feeding).lower(),
            "input_feeding_number": int(self.input_feeding),
            "direction_size": workload.hidden_size // 2,
            "batch_positions": 2 * workload.batch_tokens,
            "positions_and_end": workload.num_tokens + 1,
            "epoch_sentences": workload.batch_sentences * workload.num_batches,
            "many_steps": MANY_STEPS,
        }
        config = self.folder / self.toolkit.template
        config.parent.mkdir(parents=True, exist_ok=True)
        template = Template((Path(__file__).parent / self.toolkit.template).read_text(encoding="utf-8"))
        config.write_text(template.substitute(values), encoding="utf-8")
        return [Template(one).substitute(config=config, folder=self.folder) for one in self.toolkit.arguments]

    def _visit(self, python: str) -> Samples:
        """Trains for so long. A sample per window: target tokens per second, and per second of processor time of all
        threads together, which is the figure to compare on a busy machine.

        Raises:
            Unavailable: the toolkit stopped by itself. Its partial figures are none.
        """
        shutil.rmtree(self.folder, ignore_errors=True)
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(self.num_threads))
        with Process([python, *self.configure()], threads) as process:
            readings = list(self._readings(process))
            if len(readings) < NUM_WARM_UP_WINDOWS + MIN_WINDOWS:
                raise process.failure()
            num_parameters = self.toolkit.num_parameters(process.said())
        speeds, cpu_speeds = [], []
        for begin, end in pairwise(readings[NUM_WARM_UP_WINDOWS - 1 :]):
            num_tokens = self.workload.batch_tokens * (end.step - begin.step)
            speeds.append(num_tokens / (end.moment - begin.moment))
            cpu_speeds.append(num_tokens / (end.cpu_seconds - begin.cpu_seconds))
        return {"speed": speeds, "cpu_speed": cpu_speeds, "parameters": num_parameters}

    def _readings(self, process: Process) -> Iterator[Reading]:
        """The clocks at each line of progress, until the visit's time is over or the training ends."""
        started, num_readings, last_step = time.monotonic(), 0, -1
        path = self.folder / self.toolkit.progress
        while process.is_running:
            moment = time.monotonic()
            progress = process.said() if not self.toolkit.progress else path.read_text() if path.exists() else ""
            if (step := self.toolkit.last_step(progress)) > last_step:
                last_step, num_readings = step, num_readings + 1
                yield Reading(step, moment, process.cpu_seconds())
            enough = num_readings >= NUM_WARM_UP_WINDOWS + MIN_WINDOWS
            if moment - started > (self.seconds if enough else max(self.seconds, START_SECONDS)):
                return
            time.sleep(POLL_SECONDS)
