"""Our server under load: how it is started, what it is asked."""

import base64
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from attendant_client.v1 import seq2seq_pb2 as messages
from benchmarks.command import Context
from benchmarks.decoding.job import Job, sentences, word_of
from benchmarks.serving.served import ServedSystem

UNARY = "/attendant.v1.Seq2Seq/Generate"
BULK = "/attendant.v1.Seq2Seq/GenerateBatch"
NUM_PAYLOADS = 512
SERVER = ("-m", "server")


def attendant_server(
    context: Context,
    *,
    payloads: Path | None = None,
    num_workers: int = 2,
    num_threads: int = 2,
    precision: str = "int8",
    program: Sequence[str] = SERVER,
    name: str = "Attendant",
    options: Sequence[str] = (),
) -> ServedSystem:
    """The public command.

    Args:
        payloads: None: sentences of the workload's length.
        num_threads: of all workers together.
        program: what Python runs: another one that takes the server's options.
    """
    return ServedSystem(
        name=name,
        command=(
            *(sys.executable, *program, str(context.bundle), "--precision", precision),
            *("--port", "0", "--metrics-port", "0", "--log-level", "warning"),
            *("--workers", str(num_workers), "--threads", str(num_threads), *options),
        ),
        method=UNARY,
        payloads=payloads or equal_payloads(context),
        about=f"{precision}, --workers {num_workers} --threads {num_threads}",
    )


def equal_payloads(context: Context) -> Path:
    """Sentences of the workload's length, all alike; as many decoder steps as source positions."""
    workload = context.workload
    job = Job(
        num_sentences=NUM_PAYLOADS, num_tokens=workload.num_tokens, vocabulary_size=workload.vocabulary_size, seed=7
    )
    requests = [generate_request(source, workload.num_tokens) for source in sentences(job)]
    return write_payloads(context.cache / "payloads" / f"equal-{workload.hidden_size}.txt", requests)


def payloads_of_lengths(context: Context, name: str, lengths: Sequence[tuple[int, int]]) -> Path:
    """Random words.

    Args:
        lengths: source positions and decoder steps of each sentence, its end symbol among both.
    """
    generator, vocabulary_size = random.Random(8), context.workload.vocabulary_size
    requests = []
    for number, (num_positions, num_steps) in enumerate(lengths):
        job = Job(num_sentences=1, num_tokens=num_positions, vocabulary_size=vocabulary_size, seed=number)
        requests.append(generate_request(sentences(job)[0], num_steps))
    generator.shuffle(requests)
    return write_payloads(context.cache / "payloads" / f"{name}-{context.workload.hidden_size}.txt", requests)


def write_payloads(path: Path, requests: Sequence[bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{base64.b64encode(request).decode()}\n" for request in requests), encoding="ascii")
    return path


def generate_request(source: Sequence[int], num_steps: int, beam_size: int = 1) -> bytes:
    """A text, as users send it, in bytes. The last of its steps decides whether it ends or is cut."""
    request = messages.GenerateRequest(
        text=" ".join(word_of(token_id) for token_id in source[:-1]),
        decoding=messages.DecodingOptions(beam_size=beam_size, max_length=max(1, num_steps - 1)),
    )
    return request.SerializeToString()
