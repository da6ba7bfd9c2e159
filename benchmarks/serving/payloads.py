"""What the servers are asked: files of serialized requests, made before anything is measured."""

import base64
import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from attendant_client.v1 import seq2seq_pb2 as messages
from benchmarks.command import Context
from benchmarks.decoding.in_process import job_of
from benchmarks.job import sentences, words_of

UNARY = "/attendant.v1.Seq2Seq/Generate"
METHODS = {
    "bulk": "/attendant.v1.Seq2Seq/GenerateBatch",
    "list": "/attendant.v1.Seq2Seq/GenerateMany",
    "stream": "/attendant.v1.Seq2Seq/GenerateStream",
}
"""By the kind of load; of other kinds each server has its own."""

NUM_PAYLOADS = 512
LENGTHS = Path(__file__).parent / "lengths.json"
"""Words and punctuation marks of 1,000 pairs of sentences of 5 to 80, English and French: how long they are, nothing
else. Drawn at random from the test split of what recipes/translate-debdocs-en-fr.toml fetches, by sentences."""

Work = list[tuple[list[int], int]]
"""Sentences, as ids with their end symbol, and the decoder steps of each."""


def equal_work(context: Context) -> Work:
    """Sentences of the workload's length, all alike; as many decoder steps as source positions."""
    job = replace(job_of(context), num_sentences=NUM_PAYLOADS, seed=7)
    return [(source, job.num_tokens) for source in sentences(job)]


def real_work(context: Context) -> Work:
    """Random words, of source positions and decoder steps as in LENGTHS."""
    work = []
    for number, (num_positions, num_steps) in enumerate(json.loads(LENGTHS.read_text(encoding="utf-8"))):
        job = replace(job_of(context), num_sentences=1, num_tokens=num_positions, seed=number)
        work.append((sentences(job)[0], num_steps))
    random.Random(8).shuffle(work)
    return work


@dataclass(frozen=True, slots=True)
class Traffic:
    """What servers are asked, whatever the format of each."""

    name: str
    work: Callable[[Context], Work]

    def payloads(self, context: Context) -> Path:
        """A file of requests as our server takes them."""
        return write_payloads(context, self.name, (generate_request(*one) for one in self.work(context)))


EQUAL = Traffic("equal", equal_work)
REAL = Traffic("real-lengths", real_work)


def write_payloads(context: Context, name: str, requests: Iterable[bytes]) -> Path:
    path = context.cache / "payloads" / f"{name}-{context.workload.hidden_size}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{base64.b64encode(request).decode()}\n" for request in requests), encoding="ascii")
    return path


def generate_request(source: Sequence[int], num_steps: int, beam_size: int = 1) -> bytes:
    """A text, as users send it, in bytes. The last of its steps decides whether it ends or is cut."""
    decoding = messages.DecodingOptions(beam_size=beam_size, max_length=max(1, num_steps - 1))
    return messages.GenerateRequest(text=words_of(list(source)), decoding=decoding).SerializeToString()
