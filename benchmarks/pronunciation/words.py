"""Real words: those of the model's golden examples. Only the standard library: peers read them too."""

from __future__ import annotations

import json
import random

from benchmarks import ROOT
from benchmarks.job import Job

BUNDLE = ROOT / "models" / "g2p-en"
RUN = ROOT / "runs" / "g2p-cmudict"
"""Of recipes/g2p-cmudict.toml, which takes hours to train; without it PyTorch is left out."""


def words(job: Job) -> list[str]:
    """As many words as the job has sentences, drawn at random."""
    lines = (BUNDLE / "golden.jsonl").read_text(encoding="utf-8").splitlines()
    known = sorted({"".join(json.loads(line)["source_tokens"]) for line in lines})
    return random.Random(job.seed).choices(known, k=job.num_sentences)
