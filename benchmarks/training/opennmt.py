"""OpenNMT-py (Klein et al. 2017), through its public command."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.training.data import Corpus
from benchmarks.training.environment import Environment
from benchmarks.training.system import MANY_STEPS, System, write_config
from benchmarks.training.workload import Workload

ENVIRONMENT = Environment(
    "OpenNMT-py==3.5.1",
    # Its own list pins torch below 2.3 and adds ctranslate2, spacy, fasttext and a web server.
    (
        "configargparse",
        "pyahocorasick",
        "pyonmttok==1.37.1",
        "pyyaml",
        "rapidfuzz",
        "sacrebleu",
        "setuptools",
        "six",
        "tensorboard",
    ),
)

# It imports all of its text transforms; those of this benchmark are none, and two of them ask for these at import.
TRAIN = """\
import sys, types
sys.modules |= {name: types.ModuleType(name) for name in ("fasttext", "spacy")}
from onmt.bin.train import main
main()
"""


@dataclass(frozen=True, kw_only=True)
class OpenNMT(System):
    cache: Path

    toolkit = "OpenNMT-py"
    differences = (
        "no bridge: the encoder's last states are the decoder's first; attention projects the query at every step; "
        "output layer with a bias; no mixed precision on CPU"
    )
    step_line = re.compile(r"Step +(\d+)/")
    parameters_line = re.compile(r"number of parameters: (\d+)")

    @property
    def version(self) -> str:
        return ENVIRONMENT.version

    def command(self, workload: Workload, corpus: Corpus, folder: Path, num_threads: int) -> list[str]:
        del num_threads  # torch takes it from the environment
        config = write_config(folder, self._config(workload, corpus, folder))
        return [str(ENVIRONMENT.python(self.cache)), "-P", "-c", TRAIN, "-config", str(config)]

    def _config(self, workload: Workload, corpus: Corpus, folder: Path) -> dict[str, Any]:
        train = corpus.part("train")
        return {
            "data": {"pairs": {"path_src": f"{train}.src", "path_tgt": f"{train}.tgt"}},
            "src_vocab": str(corpus.words),
            "tgt_vocab": str(corpus.words),
            "vocab_size_multiple": 1,
            "save_model": str(folder / "model"),
            "save_checkpoint_steps": 0,
            "encoder_type": "brnn",
            "decoder_type": "rnn",
            "rnn_type": "LSTM",
            "layers": workload.num_layers,
            "word_vec_size": workload.embedding_size,
            "hidden_size": workload.hidden_size,
            "global_attention": "general",
            "input_feed": int(self.input_feeding),
            "dropout": [workload.dropout],
            "optim": "adam",
            "learning_rate": 0.001,
            "max_grad_norm": 1.0,
            "label_smoothing": 0.0,
            "batch_type": "sents",
            "batch_size": workload.batch_sentences,
            "normalization": "tokens",
            # The whole epoch is read before the first step; with processes of their own, reading takes the same cores.
            "bucket_size": workload.batch_sentences * workload.num_batches,
            "num_workers": 0,
            "train_steps": MANY_STEPS,
            "valid_steps": MANY_STEPS,
            "report_every": workload.window_steps,
            "seed": 1,
        }
