"""The bare step loop: python -m benchmarks.decoding.bare_worker BUNDLE PRECISION THREADS.

The graphs' calls of decoding a batch, replayed: encoder, then every step, with inputs that are there already. What any
engine around these graphs can reach at most.
"""

import sys
from pathlib import Path
from typing import cast

from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.bundle.manifest import Precision
from attendant.runtime.decoding.offline import decode_all
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.onnx.stepper import OnnxStepper
from benchmarks.decoding.job import Job, answer_jobs, sentences
from benchmarks.decoding.replay import GraphCalls, watched_graphs


def main(path: str, precision: str, num_threads: str) -> None:
    bundle = open_bundle(Path(path))
    stepper = OnnxStepper(bundle, cast(Precision, precision), "cpu", int(num_threads))
    recorded: dict[tuple[int, int, int], GraphCalls] = {}

    def run(job: Job) -> list[float]:
        shape = job.batch_size, job.num_tokens, job.beam_size
        if shape not in recorded:
            options = DecodingOptions(beam_size=job.beam_size, max_length=job.num_tokens - 1)
            with watched_graphs(keep=True) as calls:
                batch = sentences(job)[: job.batch_size]
                max_rows = job.batch_size * job.beam_size
                decode_all(stepper, batch, options, bundle.manifest.special_ids, max_rows=max_rows)
            recorded[shape] = calls
        return [recorded[shape].replay() for _ in range(max(1, job.num_sentences // job.batch_size))]

    answer_jobs(run)


if __name__ == "__main__":
    main(*sys.argv[1:])
