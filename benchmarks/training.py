"""Measures the training speed of Attendant, JoeyNMT and OpenNMT-py by one clock."""

import os
import random
import re
import shutil
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from string import Template

import numpy as np

from attendant_client.version import VERSION
from benchmarks import DATA
from benchmarks.harness import ENVIRONMENTS, Columns, Process, Samples, System, Visits, measure, part_of, spread
from benchmarks.job import NUM_SPECIAL_SYMBOLS, word_of
from benchmarks.results import Part
from benchmarks.workload import Context, Workload

NUM_ROUNDS = 3
POLL_SECONDS = 0.02
MANY_STEPS = 1_000_000
"""No training reaches its end: it is stopped after its visit."""

START_SECONDS = 300.0
NUM_WARM_UP_WINDOWS = 2
MIN_WINDOWS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolkit:
    """A toolkit's training command: an entry of toolkits.toml.

    Attributes:
        differences: differences of its model and work from the others'.
        template: the file of its configuration. `Training.configure` replaces names after a dollar sign.
        arguments: arguments of its Python; `$config` is the configuration, `$folder` the training's folder.
        environment: an environment of environments.toml. If empty, this Python's.
        progress: the file in the training's folder that gets the lines of progress. If empty, the command's output.
        step_line: pattern of a line of progress, with the step as its group; one comes every `window_steps`.
        parameters_line: pattern of the line with the number of parameters.
    """

    name: str
    differences: str
    template: str
    arguments: Sequence[str]
    environment: str = ""
    progress: str = ""
    step_line: str
    parameters_line: str
    precisions: Sequence[str] = ("fp32",)


TOOLKITS = {
    name: Toolkit(**entry)
    for name, entry in tomllib.loads((DATA / "toolkits.toml").read_text(encoding="utf-8")).items()
}
"""Attendant is the last."""

ABOUT = (DATA / "training.md").read_text(encoding="utf-8") + "\n".join(
    f"* {toolkit.name}: {toolkit.differences}." for toolkit in TOOLKITS.values()
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
    systems = []
    for toolkit, precision in pairs:
        training = Training(
            toolkit=toolkit,
            workload=context.workload,
            corpus=corpus,
            folder=context.cache / "runs" / f"{toolkit.name.lower()}-{precision}",
            input_feeding=input_feeding,
            precision=precision,
            num_threads=num_threads,
            seconds=seconds,
        )
        systems.append(training.system(context.cache))
    measurements = measure(systems, NUM_ROUNDS)
    peers = [m.median("speed") for m in measurements if m.samples and not m.system.name.startswith("Attendant")]
    columns: Columns = {
        "tokens/s": lambda m: f"{m.median('speed'):,.0f}",
        "to the faster peer": lambda m: f"{m.median('speed') / max(peers):.2f}" if peers else None,
        "slowest-fastest": spread,
        "windows": lambda m: str(len(m.samples["speed"])),
        "tokens/processor s": lambda m: f"{m.median('cpu_speed'):,.0f}",
        "parameters": lambda m: f"{m.median('parameters') / 1e6:.2f} M",
    }
    versions = [f"{t.name} {ENVIRONMENTS[t.environment].version if t.environment else VERSION}" for t, _ in pairs]
    note = f"{', '.join(dict.fromkeys(versions))}. Threads of each: {num_threads}."
    return part_of(measurements, columns, note=note)


def write_corpus(workload: Workload, folder: Path) -> Path:
    """Writes train.src, train.tgt, dev.src, dev.tgt, and words.txt, a word a line; returns the folder.

    All sentences have the same length, so that no batch has padding. The same bytes for the same workload.
    """
    folder.mkdir(parents=True, exist_ok=True)
    words = list(map(word_of, range(NUM_SPECIAL_SYMBOLS, workload.vocabulary_size)))
    (folder / "words.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    generator = random.Random(1)
    for part, num_batches in (("train", workload.num_batches), ("dev", 1)):
        # The target's end symbol is its last position.
        for ending, length in (("src", workload.num_tokens), ("tgt", workload.num_tokens - 1)):
            num_sentences = workload.batch_sentences * num_batches
            lines = (" ".join(generator.choices(words, k=length)) + "\n" for _ in range(num_sentences))
            (folder / f"{part}.{ending}").write_text("".join(lines), encoding="utf-8")
    return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A toolkit that trains the workload, from the start at each visit.

    Attributes:
        corpus: the folder of its files (`write_corpus`).
        folder: for the configuration, logs and checkpoints.
        input_feeding: a decoder step needs the attention of the one before (Luong et al. 2015, section 3.3).
        precision: "fp32", or "bf16": automatic mixed precision.
        seconds: duration of a visit, its start included; longer if it has fewer than MIN_WINDOWS windows then.
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
        """Returns the training as a system; `cache` has the environments."""

        def start() -> Iterator[Visits]:
            environment = self.toolkit.environment
            python = str(ENVIRONMENTS[environment].install(cache)) if environment else sys.executable
            yield {"": lambda number: self._visit(python)}

        return System(name=f"{self.toolkit.name} {self.precision}", start=start)

    def configure(self) -> list[str]:
        """Writes the configuration into the folder; returns the arguments of the toolkit's Python."""
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
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / self.toolkit.template
        template = Template((DATA / self.toolkit.template).read_text(encoding="utf-8"))
        config.write_text(template.substitute(values), encoding="utf-8")
        return [Template(text).substitute(config=config, folder=self.folder) for text in self.toolkit.arguments]

    def _visit(self, python: str) -> Samples:
        """Trains; returns a sample per window: target tokens per second, and per second of all threads' processor time.
        The latter is the figure to compare on a busy machine.

        Raises:
            Unavailable: the toolkit ended by itself.
        """
        shutil.rmtree(self.folder, ignore_errors=True)
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(self.num_threads))
        with Process([python, *self.configure()], threads) as process:
            readings = list(self._readings(process))
            if len(readings) < NUM_WARM_UP_WINDOWS + MIN_WINDOWS:
                raise process.failure()
            (num_parameters,) = re.findall(self.toolkit.parameters_line, process.output())[:1]
        steps, moments, cpu_seconds = np.diff(readings[NUM_WARM_UP_WINDOWS - 1 :], axis=0).T
        num_tokens = self.workload.batch_tokens * steps
        speeds = {"speed": (num_tokens / moments).tolist(), "cpu_speed": (num_tokens / cpu_seconds).tolist()}
        return {**speeds, "parameters": float(num_parameters.replace(",", ""))}

    def _readings(self, process: Process) -> Iterator[tuple[int, float, float]]:
        """Yields step, seconds and processor seconds at each line of progress, until the visit or the training ends."""
        started, num_readings, last_step = time.monotonic(), 0, -1
        path = self.folder / self.toolkit.progress
        while process.is_running:
            moment = time.monotonic()
            progress = process.output() if not self.toolkit.progress else path.read_text() if path.exists() else ""
            whole_lines = progress.rpartition("\n")[0]
            steps = re.findall(self.toolkit.step_line, whole_lines)
            if steps and int(steps[-1]) > last_step:
                last_step, num_readings = int(steps[-1]), num_readings + 1
                yield last_step, moment, process.cpu_seconds()
            enough = num_readings >= NUM_WARM_UP_WINDOWS + MIN_WINDOWS
            if moment - started > (self.seconds if enough else max(self.seconds, START_SECONDS)):
                return
            time.sleep(POLL_SECONDS)
