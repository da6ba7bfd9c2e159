"""The protocol of worker processes: jobs and answers; and the command that runs a function as a program.

It needs only the standard library of Python 3.9, because peers import it in their own environments. Workers of other
checkouts get the same jobs (`--against`), so the fields keep their names.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

NUM_SPECIAL_SYMBOLS = 4
EOS_ID = 3
READY = "ready\n"

Sources = list[list[int]]
"""Ids as an encoder takes them, with the end symbol."""


@dataclass(frozen=True)
class Job:
    """Sentences to decode; the same sentences for the same seed in every system.

    Attributes:
        num_tokens: source positions of each sentence, its end symbol included, and its decoder steps.
        batch_size: sentences decoded together. 1: one after the other; 0: to be chosen.
    """

    num_sentences: int
    num_tokens: int = 20
    vocabulary_size: int = 8000
    beam_size: int = 1
    batch_size: int = 64
    seed: int = 1

    def share(self, number: int, num_workers: int) -> Job:
        """Returns the part of worker `number`."""
        quotient, rest = divmod(self.num_sentences, num_workers)
        return replace(self, num_sentences=quotient + (number < rest), seed=self.seed + number)


def sentences(job: Job) -> Sources:
    """Returns the job's sentences: random words, then the end symbol."""
    generator = random.Random(job.seed)
    words = range(NUM_SPECIAL_SYMBOLS, job.vocabulary_size)
    return [[*generator.choices(words, k=job.num_tokens - 1), EOS_ID] for _ in range(job.num_sentences)]


def word_of(token_id: int) -> str:
    """Returns a word as the vocabularies of all systems spell it."""
    return f"w{token_id}"


def words_of(source: list[int]) -> str:
    """Returns a sentence as text, without its end symbol."""
    return " ".join(map(word_of, source[:-1]))


def answer_jobs(
    decode: Callable[[list[Any], Job], object],
    *,
    batches_itself: bool = False,
    sources: Callable[[Job], list[Any]] = sentences,
) -> None:
    """Runs a worker: decodes jobs, and answers with the `cpu_seconds` of all threads and the `latencies` of batches.

    Args:
        batches_itself: `decode` takes all sentences of a job at once, unless they are decoded one by one.
        sources: returns the sources of a job.
    """

    def answer(fields: dict[str, int]) -> dict[str, object]:
        job = Job(**fields)
        size = job.num_sentences if batches_itself and job.batch_size > 1 else job.batch_size
        cpu, latencies, job_sources = time.process_time(), [], sources(job)
        for start in range(0, len(job_sources), size):
            began = time.perf_counter()
            decode(job_sources[start : start + size], job)
            latencies.append(time.perf_counter() - began)
        return {"cpu_seconds": time.process_time() - cpu, "latencies": latencies}

    answer_questions(answer)


def answer_questions(answer: Callable[[dict[str, Any]], object]) -> None:
    """Prints READY, then answers each line of standard input with a line; both are JSON."""
    # A toolkit's own output goes to standard error instead.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    answers.write(READY)
    for line in sys.stdin:
        answers.write(json.dumps(answer(json.loads(line))) + "\n")


def program(function: str, python: Path | str = sys.executable, **arguments: object) -> list[str]:
    """Returns the command that calls a function of this package in a process of its own. The function is
    MODULE:FUNCTION, without the leading "benchmarks."; its arguments are of types that JSON has.
    """
    return [str(python), "-m", "benchmarks.job", f"benchmarks.{function}", json.dumps(arguments)]


if __name__ == "__main__":
    module, _, name = sys.argv[1].partition(":")
    getattr(importlib.import_module(module), name)(**json.loads(sys.argv[2]))
