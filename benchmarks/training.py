"""Training speed: Attendant beside JoeyNMT and OpenNMT-py, watched by one clock, and its kernels beside plain code."""

import os
import random
import re
import shutil
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from string import Template
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attendant.training.kernels.cells import STATE_NAMES, CellKind, CellState, Dropout
from attendant.training.kernels.hardware import fast_products
from attendant.training.kernels.loss import output_loss, smoothed_cross_entropy
from attendant.training.model.decoder import CellLoop, DecoderCell
from attendant_client.version import VERSION
from benchmarks import DATA
from benchmarks.harness import (
    ENVIRONMENTS,
    Columns,
    Process,
    Samples,
    System,
    Visit,
    Visits,
    measure,
    part_of,
    running_system,
    spread_of,
)
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
        differences: between its model and work and the others'.
        template: the file of its configuration. `Training.configure` replaces names after a dollar sign.
        arguments: of its Python; `$config` is the configuration, `$folder` the training's folder.
        environment: of environments.toml. If empty, this Python's.
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
    peers = [m.median("speed") for m in measurements if m.samples and not m.system.key.startswith("attendant")]
    columns: Columns = {
        "tokens/s": lambda m: f"{m.median('speed'):,.0f}",
        "to the faster peer": lambda m: f"{m.median('speed') / max(peers):.2f}" if peers else None,
        "slowest-fastest": spread_of("speed"),
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


class Reading(NamedTuple):
    """The clocks at a line of progress."""

    step: int
    moment: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A toolkit that trains the workload, from the start at each visit.

    Attributes:
        corpus: the folder of its files (`write_corpus`).
        folder: for the configuration, logs and checkpoints.
        input_feeding: a decoder step needs the attention of the one before (Luong et al. 2015, section 3.3).
        precision: "fp32", or "bf16": automatic mixed precision.
        seconds: of a visit, its start included; longer if it has fewer than MIN_WINDOWS windows then.
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

        name = f"{self.toolkit.name} {self.precision}"
        return System(key=name.lower().replace(" ", "_"), name=name, start=start)

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
        """Trains; returns a sample per window: target tokens per second, and per second of all threads' processor time,
        which is the figure to compare on a busy machine.

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
        speeds, cpu_speeds = [], []
        for begin, end in pairwise(readings[NUM_WARM_UP_WINDOWS - 1 :]):
            num_tokens = self.workload.batch_tokens * (end.step - begin.step)
            speeds.append(num_tokens / (end.moment - begin.moment))
            cpu_speeds.append(num_tokens / (end.cpu_seconds - begin.cpu_seconds))
        return {"speed": speeds, "cpu_speed": cpu_speeds, "parameters": float(num_parameters.replace(",", ""))}

    def _readings(self, process: Process) -> Iterator[Reading]:
        """Yields the clocks at each line of progress, until the visit's time is over or the training ends."""
        started, num_readings, last_step = time.monotonic(), 0, -1
        path = self.folder / self.toolkit.progress
        while process.is_running:
            moment = time.monotonic()
            progress = process.output() if not self.toolkit.progress else path.read_text() if path.exists() else ""
            whole_lines = progress.rpartition("\n")[0]
            steps = re.findall(self.toolkit.step_line, whole_lines)
            if steps and int(steps[-1]) > last_step:
                last_step, num_readings = int(steps[-1]), num_readings + 1
                yield Reading(last_step, moment, process.cpu_seconds())
            enough = num_readings >= NUM_WARM_UP_WINDOWS + MIN_WINDOWS
            if moment - started > (self.seconds if enough else max(self.seconds, START_SECONDS)):
                return
            time.sleep(POLL_SECONDS)


ROWS, STEPS, HIDDEN, VOCABULARY = 64, 20, 512, 8000
KERNEL_ROUNDS, KERNEL_WARM_UPS = 15, 2
Kernel = Callable[[], Tensor]


def cell_loop(kind: CellKind, *, looped: bool) -> Kernel:
    """Returns a decoder's cell that gets its own output, STEPS times."""
    cell, inputs = DecoderCell(kind, HIDDEN, HIDDEN, HIDDEN), torch.randn(STEPS, ROWS, HIDDEN)

    def run() -> Tensor:
        state: CellState = (torch.zeros(ROWS, HIDDEN),) * len(STATE_NAMES[kind])
        steps = CellLoop(cell, inputs, ROWS, STEPS) if looped else None
        for each in inputs:
            state = cell.step(torch.cat([each, state[0]], 1), state) if steps is None else steps.step(state[0], state)
        return state[0].sum()

    return run


def kernels(context: Context) -> Part:
    """Kernels of a training step.

    Forward and backward of each on one thread, beside the plain way and in turns with it: medians of processor time.
    64 rows, 20 steps, 512 units, 8,000 symbols.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs, targets = torch.randn(ROWS * STEPS, HIDDEN), torch.randint(3, VOCABULARY, (ROWS * STEPS,))
    product, output, dropout = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(HIDDEN, VOCABULARY), Dropout(0.3)
    states = torch.randn(ROWS, STEPS, HIDDEN, requires_grad=True)
    # Products are equal code: the library that runs them differs.
    pairs: dict[str, tuple[Kernel, Kernel]] = {"products": (lambda: product(inputs).sum(),) * 2}
    pairs |= {f"looped, {kind}": (cell_loop(kind, looped=True), cell_loop(kind, looped=False)) for kind in STATE_NAMES}
    pairs["output_loss"] = (
        lambda: output_loss(inputs, output.weight, output.bias, targets, label_smoothing=0.1)[0],
        lambda: smoothed_cross_entropy(output(inputs), targets, label_smoothing=0.1),
    )
    pairs["dropout"] = (lambda: dropout(states).sum(), lambda: F.dropout(states, 0.3).sum())
    systems = []
    for precision in ("fp32", "bf16"):
        for name, (ours, plain) in pairs.items():
            visits = {"_ours": _visit(ours, precision), "_plain": _visit(plain, precision, fast=name != "products")}
            systems.append(running_system(f"{precision}_{name}", f"{name}, {precision}", visits))
    measurements = measure(systems, KERNEL_WARM_UPS + (1 if context.quick else KERNEL_ROUNDS))
    columns: Columns = {
        "ms": "ms_ours",
        "plain, ms": "ms_plain",
        "times as fast": lambda m: m.median("ms_plain") / m.median("ms_ours"),
    }
    return part_of(measurements, columns, title="kernel")


def _visit(kernel: Kernel, precision: str, *, fast: bool = True) -> Visit:
    """Measures one thread's processor time, which other programs don't affect; `fast`: with the fast products."""

    def visit(number: int) -> dict[str, float]:
        began = time.process_time()
        with fast_products(torch.device("cpu")) if fast else nullcontext():
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                total = kernel()
            total.backward()  # type: ignore[no-untyped-call]
        return {"ms": 1e3 * (time.process_time() - began)} if number > KERNEL_WARM_UPS else {}

    return visit
