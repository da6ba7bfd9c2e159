"""JoeyNMT in process: python -m benchmarks.peers.joeynmt_worker HIDDEN_SIZE, in its own environment.

The model of its training benchmark with fresh weights, and the toolkit's own search.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import torch
from joeynmt.model import build_model
from joeynmt.search import search
from joeynmt.vocabulary import Vocabulary

from benchmarks.decoding.job import NUM_SPECIAL_SYMBOLS, Job, Sources, answer_jobs, one_by_one, word_of
from benchmarks.training.workload import QUICK, Workload

SPECIAL_SYMBOLS = SimpleNamespace(
    pad_token="<pad>",
    unk_token="<unk>",
    bos_token="<s>",
    eos_token="</s>",
    sep_token=None,
    unk_id=0,
    pad_id=1,
    bos_id=2,
    eos_id=3,
    lang_tags=[],
)


def architecture(workload: Workload) -> dict[str, Any]:
    size = workload.hidden_size
    layers = {"type": "recurrent", "rnn_type": "lstm", "num_layers": workload.num_layers, "dropout": 0.0}
    embeddings = {"embedding_dim": workload.embedding_size, "dropout": 0.0}
    return {
        "encoder": {**layers, "bidirectional": True, "hidden_size": size // 2, "embeddings": embeddings},
        "decoder": {
            **layers,
            "hidden_size": size,
            "embeddings": embeddings,
            "attention": "luong",
            "init_hidden": "bridge",
            "hidden_dropout": 0.0,
            "input_feeding": True,
        },
    }


def main(hidden_size: str) -> None:
    workload = next(one for one in (Workload(), QUICK) if one.hidden_size == int(hidden_size))
    torch.set_num_threads(1)
    torch.manual_seed(1)
    vocabulary = Vocabulary([word_of(i) for i in range(NUM_SPECIAL_SYMBOLS, workload.vocabulary_size)], SPECIAL_SYMBOLS)
    model = build_model(architecture(workload), vocabulary, vocabulary).eval()

    def decode(sources: Sources, job: Job) -> None:
        source_ids = torch.tensor(sources)
        batch = SimpleNamespace(
            src=source_ids,
            src_length=torch.full((len(sources),), job.num_tokens),
            src_mask=torch.ones(len(sources), 1, job.num_tokens, dtype=torch.bool),
            has_trg=False,
        )
        search(
            model,
            batch,
            max_output_length=job.num_tokens,
            min_output_length=job.num_tokens,
            beam_size=job.beam_size,
            beam_alpha=0.6,
        )

    answer_jobs(lambda job: one_by_one(job, lambda sources: decode(sources, job)))


if __name__ == "__main__":
    main(*sys.argv[1:])
