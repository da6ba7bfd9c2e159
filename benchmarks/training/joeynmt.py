"""JoeyNMT (Kreutzer et al. 2019), through its public command."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.training.data import Corpus
from benchmarks.training.environment import Environment
from benchmarks.training.system import MANY_STEPS, System, write_config
from benchmarks.training.workload import Workload

ENVIRONMENT = Environment(
    "joeynmt==2.3.0",
    # Its own list pins protobuf below 3.21 and adds linters and data set loaders.
    (
        "importlib-metadata",
        "matplotlib",
        "packaging",
        "plotly",
        "pyyaml",
        "sacrebleu",
        "sentencepiece",
        "setuptools",
        "subword-nmt",
        "tensorboard",
        "tqdm",
    ),
)


@dataclass(frozen=True, kw_only=True)
class JoeyNMT(System):
    cache: Path

    toolkit = "JoeyNMT"
    differences = (
        "one bridge for all decoder layers, hidden and cell state; keys projected once per source; output layer "
        "without a bias; one more source position, the end symbol, which it always appends; no mixed precision on CPU"
    )
    step_line = re.compile(r"Step: +(\d+), Batch Loss")
    parameters_line = re.compile(r"Total params: (\d+)")

    @property
    def version(self) -> str:
        return ENVIRONMENT.version

    def command(self, workload: Workload, corpus: Corpus, folder: Path, num_threads: int) -> list[str]:
        del num_threads  # torch takes it from the environment
        config = write_config(folder, self._config(workload, corpus, folder))
        return [str(ENVIRONMENT.python(self.cache)), "-P", "-m", "joeynmt", "train", str(config), "--skip-test"]

    def _config(self, workload: Workload, corpus: Corpus, folder: Path) -> dict[str, Any]:
        rnn = {"type": "recurrent", "rnn_type": "lstm", "num_layers": workload.num_layers, "dropout": workload.dropout}
        embeddings = {"embedding_dim": workload.embedding_size, "dropout": workload.dropout}
        words = {"voc_file": str(corpus.words), "level": "word", "max_length": workload.num_tokens + 1}
        return {
            "name": "benchmark",
            "model_dir": str(folder / "model"),
            "use_cuda": False,
            "data": {
                "dataset_type": "plain",
                "train": str(corpus.part("train")),
                "dev": str(corpus.part("dev")),
                "src": words | {"lang": "src"},
                "trg": words | {"lang": "tgt"},
            },
            "testing": {},
            "training": {
                "optimizer": "adam",
                "learning_rate": 0.001,
                "learning_rate_min": 0.0,
                # It asks for a schedule; this one multiplies by 1.
                "scheduling": "exponential",
                "decrease_factor": 1.0,
                "clip_grad_norm": 1.0,
                "label_smoothing": 0.0,
                "batch_size": workload.batch_sentences,
                "batch_type": "sentence",
                "normalization": "tokens",
                "epochs": MANY_STEPS,
                "updates": MANY_STEPS,
                "logging_freq": workload.window_steps,
                "validation_freq": MANY_STEPS * workload.window_steps,
            },
            "model": {
                "encoder": rnn
                | {"bidirectional": True, "hidden_size": workload.hidden_size // 2, "embeddings": embeddings},
                "decoder": rnn
                | {
                    "hidden_size": workload.hidden_size,
                    "embeddings": embeddings,
                    "attention": "luong",
                    "init_hidden": "bridge",
                    "hidden_dropout": workload.dropout,
                    "input_feeding": self.input_feeding,
                },
            },
        }
