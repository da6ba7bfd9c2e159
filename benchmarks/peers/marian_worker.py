"""Marian in process: python -m benchmarks.peers.marian_worker FOLDER WORKERS, in the environment of `bergamot`."""

from __future__ import annotations

import functools
import importlib.util
import json
import sys
import time
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.decoding.job import Job, Sources, answer_jobs, one_by_one, sentences, word_of
from benchmarks.peers.marian_model import MODEL, VOCABULARY


def extension() -> ModuleType:
    """The package's compiled module alone: the package itself asks a web site for its list of models when imported."""
    package = importlib.util.find_spec("bergamot")
    assert package is not None
    found = PathFinder.find_spec("_bergamot", package.submodule_search_locations)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def settings(folder: Path, job: Job) -> str:
    """YAML. A batch is so many source tokens, end symbols among them, and no answer is longer than its source.

    Of the precisions that a model without precomputed scales can have, one is fastest for batches, one for sentences.
    """
    return f"""
models: {json.dumps([str(folder / MODEL)])}
vocabs: {json.dumps(2 * [str(folder / VOCABULARY)])}
beam-size: {job.beam_size}
normalize: 0.6
max-length-factor: 1.0
max-length-break: {job.num_tokens}
mini-batch-words: {job.num_tokens * job.batch_size}
gemm-precision: {"int8" if job.batch_size == 1 else "int8shiftAll"}
ssplit-mode: sentence
cpu-threads: 1
workspace: 128
quiet: true
"""


def main(path: str, num_workers: str) -> None:
    bergamot: Any = extension()
    service = bergamot.Service(bergamot.ServiceConfig(numWorkers=int(num_workers), cacheSize=0))
    options = bergamot.ResponseOptions(qualityScores=False)

    @functools.cache
    def model(text: str) -> Any:
        return service.modelFromConfig(text)

    def translate(sources: Sources, job: Job) -> None:
        # A line is a sentence; all lines of one request are there before the first batch is made.
        lines = "\n".join(" ".join(map(word_of, source[:-1])) for source in sources)
        (answer,) = service.translate(model(settings(Path(path), job)), bergamot.VectorString([lines]), options)
        lengths = {answer.target.numWords(number) for number in range(len(sources))}
        if answer.target.numSentences() != len(sources) or lengths != {job.num_tokens}:
            raise AssertionError(f"{len(sources)} answers of {job.num_tokens} tokens were asked for, not {lengths}")

    def run(job: Job) -> list[float]:
        if job.batch_size == 1:
            return one_by_one(job, lambda batch: translate(batch, job))
        sources = sentences(job)
        began = time.perf_counter()
        translate(sources, job)
        return [time.perf_counter() - began]

    answer_jobs(run)


if __name__ == "__main__":
    main(*sys.argv[1:])
