"""What a worker process is asked, and how it answers: one JSON line each, on standard input and output.

Only the standard library, and no newer Python than 3.9's: this file is imported in every peer's own environment. Other
checkouts' workers are asked in the same way (decoding/parts.py): fields keep their names.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

NUM_SPECIAL_SYMBOLS = 4
EOS_ID = 3
READY = "ready\n"

Sources = list[list[int]]
"""Ids as an encoder takes them: the last one is the end symbol's."""


@dataclass(frozen=True)
class Job:
    """Sentences to decode; the same ones for the same seed in every system.

    Attributes:
        num_tokens: source positions of each sentence, its end symbol among them, and decoder steps of each.
        batch_size: sentences decoded together; 1: one after the other; 0: to be chosen.
        seed: of the random words.
    """

    num_sentences: int
    num_tokens: int = 20
    vocabulary_size: int = 8000
    beam_size: int = 1
    batch_size: int = 64
    seed: int = 1


def sentences(job: Job) -> Sources:
    """The job's sentences: random words, then the end symbol."""
    generator = random.Random(job.seed)
    words = range(NUM_SPECIAL_SYMBOLS, job.vocabulary_size)
    return [[*generator.choices(words, k=job.num_tokens - 1), EOS_ID] for _ in range(job.num_sentences)]


def word_of(token_id: int) -> str:
    """How the vocabularies of all systems spell a word."""
    return f"w{token_id}"


def words_of(source: list[int]) -> str:
    """A sentence as text, without its end symbol."""
    return " ".join(map(word_of, source[:-1]))


def share(job: Job, number: int, num_workers: int) -> Job:
    """The part of a job that worker `number` of so many does."""
    whole, rest = divmod(job.num_sentences, num_workers)
    return replace(job, num_sentences=whole + (number < rest), seed=job.seed + number)


def answer_jobs(
    decode: Callable[[list[Any], Job], object],
    *,
    batches_itself: bool = False,
    sources: Callable[[Job], list[Any]] = sentences,
) -> None:
    """The life of a worker process: decodes the jobs that it is asked to. An answer is what a job took: `seconds` by
    the clock, `cpu_seconds` of all threads' processor time, and `latencies`, the seconds of each batch.

    Args:
        batches_itself: `decode` takes all sentences of a job at once, unless they are to be decoded one by one.
        sources: what is decoded for a job.
    """

    def answer(asked: dict[str, int]) -> dict[str, object]:
        job = Job(**asked)
        size = job.num_sentences if batches_itself and job.batch_size > 1 else job.batch_size
        cpu, latencies, wanted = time.process_time(), [], sources(job)
        for start in range(0, len(wanted), size):
            began = time.perf_counter()
            decode(wanted[start : start + size], job)
            latencies.append(time.perf_counter() - began)
        return {"seconds": sum(latencies), "cpu_seconds": time.process_time() - cpu, "latencies": latencies}

    answer_questions(answer)


def answer_questions(answer: Callable[[dict[str, Any]], object]) -> None:
    """Says that it is ready, then answers each line of standard input, in JSON, until that ends."""
    # What a toolkit prints is no answer.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    answers.write(READY)
    for line in sys.stdin:
        answers.write(json.dumps(answer(json.loads(line))) + "\n")
