"""What the servers are asked: serialized requests, made before anything is measured."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from attendant_client.v1 import seq2seq_pb2 as messages
from benchmarks.command import Context
from benchmarks.decoding.in_process import job_of
from benchmarks.job import sentences, words_of

NUM_REQUESTS = 512
LENGTHS = Path(__file__).parent / "lengths.json"
"""Words and punctuation marks of 1,000 pairs of sentences of 5 to 80, English and French: how long they are, nothing
else. Drawn at random from the test split of what recipes/translate-debdocs-en-fr.toml fetches, by sentences."""

Work = list[tuple[list[int], int]]
"""Sentences, as ids with their end symbol, and the decoder steps of each."""


def equal_work(context: Context) -> Work:
    """Sentences of the workload's length, all alike; as many decoder steps as source positions."""
    job = replace(job_of(context), num_sentences=NUM_REQUESTS, seed=7)
    return [(source, job.num_tokens) for source in sentences(job)]


def real_work(context: Context) -> Work:
    """Random words, of source positions and decoder steps as in LENGTHS."""
    work = []
    for number, (num_positions, num_steps) in enumerate(json.loads(LENGTHS.read_text(encoding="utf-8"))):
        job = replace(job_of(context), num_sentences=1, num_tokens=num_positions, seed=number)
        work.append((sentences(job)[0], num_steps))
    random.Random(8).shuffle(work)
    return work


def generate_requests(work: Work) -> list[bytes]:
    """As our server takes them."""
    return [generate_request(*one) for one in work]


def generate_request(source: Sequence[int], num_steps: int, beam_size: int = 1) -> bytes:
    """A text, as users send it, in bytes. The last of its steps decides whether it ends or is cut."""
    decoding = messages.DecodingOptions(beam_size=beam_size, max_length=max(1, num_steps - 1))
    return messages.GenerateRequest(text=words_of(list(source)), decoding=decoding).SerializeToString()
