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
from functools import partial
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from attendant_client.version import VERSION
from benchmarks import DATA
from benchmarks.harness import ENVIRONMENTS, Columns, Process, Samples, System, Visits, measure, part_of, spread
from benchmarks.job import NUM_SPECIAL_SYMBOLS, word_of
from benchmarks.results import Part
from benchmarks.workload import Context, Workload

NUM_ROUNDS = 3
POLL_SECONDS = 0.02
MANY_STEPS = 1_000_000  # No training reaches its end: it is stopped after its visit.
START_SECONDS = 300.0
NUM_WARM_UP_WINDOWS = 2
MIN_WINDOWS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolkit:
    """A toolkit's training command: an entry of toolkits.toml.

    Attributes:
        template: the file of its configuration. `configure` replaces names after a dollar sign.
        arguments: arguments of its Python; `$config` is the configuration, `$folder` the training's folder.
        environment: an environment of environments.toml. If empty, this Python's.
        progress: the file in the training's folder that gets the lines of progress. If empty, the command's output.
        step_line: pattern of a line of progress, with the step as its group; one comes every `window_steps`.
        parameters_line: pattern of the line with the number of parameters.
    """

    name: str
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

ABOUT = (DATA / "training.md").read_text(encoding="utf-8").strip()


def input_feeding(context: Context) -> Part:
    """With input feeding."""
    return _part(context, input_feeding=True)


def no_input_feeding(context: Context) -> Part:
    """Without input feeding."""
    return _part(context, input_feeding=False)


def _part(context: Context, *, input_feeding: bool) -> Part:
    pairs = [(toolkit, precision) for toolkit in TOOLKITS.values() for precision in toolkit.precisions]
    # The minutes are for both parts.
    seconds = 60 * context.options.minutes / (2 * NUM_ROUNDS * len(pairs))
    corpus, num_threads = write_corpus(context.workload, context.cache / "data"), len(os.sched_getaffinity(0))

    def start(toolkit: Toolkit, precision: str) -> Iterator[Visits]:
        environment, folder = toolkit.environment, context.cache / "runs" / f"{toolkit.name.lower()}-{precision}"
        python = str(ENVIRONMENTS[environment].install(context.cache)) if environment else sys.executable

        def visit(number: int) -> Samples:
            shutil.rmtree(folder, ignore_errors=True)
            settings = {"precision": precision, "num_threads": num_threads}
            arguments = configure(toolkit, context.workload, folder, corpus, input_feeding=input_feeding, **settings)
            return _train(toolkit, [python, *arguments], folder, seconds, num_threads, context.workload.batch_tokens)

        yield {"": visit}

    systems = [System(name=f"{pair[0].name} {pair[1]}", start=partial(start, *pair)) for pair in pairs]
    measurements = measure(systems, NUM_ROUNDS)
    peers = [m.median("speed") for m in measurements if m.samples and not m.system.name.startswith("Attendant")]
    columns: Columns = {
        "tokens/s": "speed",
        "to the faster peer": lambda m: m.median("speed") / max(peers) if peers else None,
        "slowest-fastest": spread,
        "tokens/processor s": "cpu_speed",
        "parameters": lambda m: f"{m.median('parameters') / 1e6:.2f} M",
    }
    own = f"attendant=={VERSION}"
    versions = [ENVIRONMENTS[each.environment].package if each.environment else own for each in TOOLKITS.values()]
    note = f"{', '.join(versions)}. Threads of each: {num_threads}."
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


def configure(
    toolkit: Toolkit, workload: Workload, folder: Path, corpus: Path, *, input_feeding: bool, **settings: Any
) -> list[str]:
    """Writes the configuration of a training; returns the arguments of the toolkit's Python."""
    values = {
        **asdict(workload),
        **settings,
        "folder": folder,
        "corpus": corpus,
        "input_feeding": str(input_feeding).lower(),
        "input_feeding_number": int(input_feeding),
        "direction_size": workload.hidden_size // 2,
        "batch_positions": 2 * workload.batch_tokens,
        "positions_and_end": workload.num_tokens + 1,
        "epoch_sentences": workload.batch_sentences * workload.num_batches,
        "many_steps": MANY_STEPS,
    }
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / toolkit.template
    template = Template((DATA / toolkit.template).read_text(encoding="utf-8"))
    config.write_text(template.substitute(values), encoding="utf-8")
    return [Template(text).substitute(config=config, folder=folder) for text in toolkit.arguments]


def _train(
    toolkit: Toolkit, command: Sequence[str], folder: Path, seconds: float, num_threads: int, batch_tokens: int
) -> Samples:
    """Trains from the start for `seconds`, or until there are MIN_WINDOWS windows. Returns a sample per window: target
    tokens per second, and per second of all threads' processor time, which is the figure to compare on a busy machine.
    Raises Unavailable: the toolkit ended by itself.
    """
    readings: list[tuple[int, float, float]] = []  # step, seconds and processor seconds, a reading per window
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(num_threads))
    with Process(command, threads) as process:
        started, path = time.monotonic(), folder / toolkit.progress
        while process.is_running:
            moment, has_enough = time.monotonic(), len(readings) >= NUM_WARM_UP_WINDOWS + MIN_WINDOWS
            if moment - started > (seconds if has_enough else max(seconds, START_SECONDS)):
                break
            progress = process.output() if not toolkit.progress else path.read_text() if path.exists() else ""
            steps = re.findall(toolkit.step_line, progress.rpartition("\n")[0])
            if steps and (not readings or int(steps[-1]) > readings[-1][0]):
                readings.append((int(steps[-1]), moment, process.cpu_seconds()))
            time.sleep(POLL_SECONDS)
        if len(readings) < NUM_WARM_UP_WINDOWS + MIN_WINDOWS:
            raise process.failure()
        (num_parameters,) = re.findall(toolkit.parameters_line, process.output())[:1]
    steps, moments, cpu_seconds = np.diff(readings[NUM_WARM_UP_WINDOWS - 1 :], axis=0).T
    num_tokens = batch_tokens * steps
    speeds = {"speed": (num_tokens / moments).tolist(), "cpu_speed": (num_tokens / cpu_seconds).tolist()}
    return {**speeds, "parameters": float(num_parameters.replace(",", ""))}
