"""The plain ONNX Runtime loop in process: python -m benchmarks.peers.plain_worker FOLDER THREADS."""

import sys

from benchmarks.decoding.job import answer_jobs, one_by_one
from benchmarks.peers.plain_loop import PlainLoop


def main(folder: str, num_threads: str) -> None:
    loop = PlainLoop(folder, int(num_threads))
    answer_jobs(lambda job: one_by_one(job, lambda batch: loop.decode(batch, job.num_tokens, job.beam_size)))


if __name__ == "__main__":
    main(*sys.argv[1:])
