"""Attendant, through its public command."""

import re
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.training.data import Corpus
from benchmarks.training.system import MANY_STEPS, System
from benchmarks.training.workload import Workload

RECIPE = """\
[data]
train = {{source = "{train}.src", target = "{train}.tgt"}}
validation = {{source = "{dev}.src", target = "{dev}.tgt"}}

[source]
tokenizer = "word"
vocabulary_size = {workload.vocabulary_size}
append_eos = false

[target]
tokenizer = "word"
vocabulary_size = {workload.vocabulary_size}

[model]
cell = "lstm"
embedding_size = {workload.embedding_size}
hidden_size = {workload.hidden_size}
dropout = {workload.dropout}

[model.encoder]
num_layers = {workload.num_layers}
hidden_size = {direction_size}

[model.attention]
score = "general"

[model.decoder]
num_layers = {workload.num_layers}
input_feeding = {input_feeding}

[batches]
max_tokens = {max_tokens}

[optimizer]
kind = "adam"
learning_rate = 0.001

[schedule]
kind = "constant"

[training]
max_steps = {max_steps}
label_smoothing = 0.0
clip_norm = 1.0
checkpoint_every_seconds = 1e9
log_every_steps = {workload.window_steps}
num_threads = {num_threads}
device = "cpu"
{precision}

[validation]
every_steps = {max_steps}
"""


class Attendant(System):
    toolkit = "Attendant"
    differences = (
        "a learned bridge for the hidden and the cell state of each decoder layer; keys projected once per source; "
        "output layer with a bias"
    )
    step_line = re.compile(r'"event": "train", "step": (\d+)')
    parameters_line = re.compile(r"([\d,]+) parameters")

    @property
    def version(self) -> str:
        try:
            return version("attendant")
        except PackageNotFoundError:
            return "not installed"

    def command(self, workload: Workload, corpus: Corpus, folder: Path, num_threads: int) -> list[str]:
        recipe = folder / "recipe.toml"
        text = RECIPE.format(
            workload=workload,
            train=corpus.part("train"),
            dev=corpus.part("dev"),
            direction_size=workload.hidden_size // 2,
            input_feeding=str(self.input_feeding).lower(),
            # Source and target positions: exactly the wanted number of sentences.
            max_tokens=2 * workload.batch_tokens,
            max_steps=MANY_STEPS,
            num_threads=num_threads,
            precision="" if self.precision == "fp32" else f'precision = "{self.precision}"',
        )
        recipe.write_text(text, encoding="utf-8")
        return [sys.executable, "-m", "training", str(recipe), "--output", str(folder / "run")]

    def progress(self, folder: Path, log: Path) -> Path:
        del log
        return folder / "run" / "metrics.jsonl"
