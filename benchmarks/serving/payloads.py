"""What the servers are asked: files of serialized requests, made before anything is measured."""

import base64
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from attendant_client.v1 import seq2seq_pb2 as messages
from benchmarks.command import Context
from benchmarks.decoding.in_process import job_of
from benchmarks.job import Job, sentences, words_of

UNARY = "/attendant.v1.Seq2Seq/Generate"
METHODS = {
    "bulk": "/attendant.v1.Seq2Seq/GenerateBatch",
    "list": "/attendant.v1.Seq2Seq/GenerateMany",
    "stream": "/attendant.v1.Seq2Seq/GenerateStream",
}
"""By the kind of load; of other kinds each server has its own."""

NUM_PAYLOADS = 512


def equal_job(context: Context) -> Job:
    """Sentences of the workload's length, all alike; as many decoder steps as source positions."""
    return replace(job_of(context), num_sentences=NUM_PAYLOADS, seed=7)


def equal_payloads(context: Context) -> Path:
    """Requests of these sentences."""
    requests = [generate_request(source, context.workload.num_tokens) for source in sentences(equal_job(context))]
    return write_payloads(context, "equal", requests)


def write_payloads(context: Context, name: str, requests: Iterable[bytes]) -> Path:
    path = context.cache / "payloads" / f"{name}-{context.workload.hidden_size}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{base64.b64encode(request).decode()}\n" for request in requests), encoding="ascii")
    return path


def generate_request(source: Sequence[int], num_steps: int, beam_size: int = 1) -> bytes:
    """A text, as users send it, in bytes. The last of its steps decides whether it ends or is cut."""
    decoding = messages.DecodingOptions(beam_size=beam_size, max_length=max(1, num_steps - 1))
    return messages.GenerateRequest(text=words_of(list(source)), decoding=decoding).SerializeToString()
