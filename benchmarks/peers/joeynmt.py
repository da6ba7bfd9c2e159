"""JoeyNMT in process, in its own environment, with its own search."""

from pathlib import Path
from string import Template
from types import SimpleNamespace

import torch
import yaml
from joeynmt.model import build_model
from joeynmt.search import search
from joeynmt.vocabulary import Vocabulary

from benchmarks.job import NUM_SPECIAL_SYMBOLS, Job, Sources, answer_jobs, word_of

CONFIG = Path(__file__).parents[1] / "training" / "joeynmt.yaml"
TOKENS = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "sep_token": None}
IDS = {"unk_id": 0, "pad_id": 1, "bos_id": 2, "eos_id": 3}


def work(vocabulary_size: int, hidden_size: int, **sizes: float) -> None:
    """The model of its training benchmark's configuration, with fresh weights.

    Args:
        sizes: the workload's others.
    """
    torch.set_num_threads(1)
    torch.manual_seed(1)
    words = [word_of(number) for number in range(NUM_SPECIAL_SYMBOLS, vocabulary_size)]
    vocabulary = Vocabulary(words, SimpleNamespace(**TOKENS, **IDS, lang_tags=[]))
    sizes |= {"hidden_size": hidden_size, "direction_size": hidden_size // 2}
    config = Template(CONFIG.read_text(encoding="utf-8")).safe_substitute(sizes, input_feeding="true")
    model = build_model(yaml.safe_load(config)["model"], vocabulary, vocabulary).eval()

    def decode(sources: Sources, job: Job) -> None:
        num_sources, num_tokens = len(sources), job.num_tokens
        batch = SimpleNamespace(
            src=torch.tensor(sources),
            src_length=torch.full((num_sources,), num_tokens),
            src_mask=torch.ones(num_sources, 1, num_tokens, dtype=torch.bool),
            has_trg=False,
        )
        lengths = {"max_output_length": num_tokens, "min_output_length": num_tokens}
        search(model, batch, **lengths, beam_size=job.beam_size, beam_alpha=0.6)

    answer_jobs(decode)
