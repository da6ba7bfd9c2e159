"""CTranslate2 in process: python -m benchmarks.peers.ctranslate2_worker MODEL WORKERS, in its own environment."""

from __future__ import annotations

import sys
import time

import ctranslate2

from benchmarks.decoding.job import Job, Sources, answer_jobs, one_by_one, sentences, word_of


def words_of(sources: Sources) -> list[list[str]]:
    return [[*(word_of(token_id) for token_id in source[:-1]), "</s>"] for source in sources]


def main(path: str, num_workers: str) -> None:
    translator = ctranslate2.Translator(
        path, device="cpu", compute_type="int8", inter_threads=int(num_workers), intra_threads=1
    )

    def translate(sources: list[list[str]], job: Job) -> None:
        translator.translate_batch(
            sources,
            max_batch_size=job.batch_size,
            beam_size=job.beam_size,
            min_decoding_length=job.num_tokens,
            max_decoding_length=job.num_tokens,
        )

    def run(job: Job) -> list[float]:
        if job.batch_size == 1:
            return one_by_one(job, lambda batch: translate(words_of(batch), job))
        words = words_of(sentences(job))
        began = time.perf_counter()
        translate(words, job)
        return [time.perf_counter() - began]

    answer_jobs(run)


if __name__ == "__main__":
    main(*sys.argv[1:])
