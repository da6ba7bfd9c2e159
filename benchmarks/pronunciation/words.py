"""Real words: those of the model's golden examples. Only the standard library: peers read them too."""

from __future__ import annotations

import json
import random
from pathlib import Path

from benchmarks.job import Job

MODELS = Path(__file__).parents[2] / "models"
BUNDLE = MODELS / "g2p-en"
RUN = MODELS / "runs" / "g2p-en"


def words(job: Job) -> list[str]:
    """As many words as the job has sentences, drawn at random."""
    lines = (BUNDLE / "golden.jsonl").read_text(encoding="utf-8").splitlines()
    known = sorted({"".join(json.loads(line)["source_tokens"]) for line in lines})
    return random.Random(job.seed).choices(known, k=job.num_sentences)
