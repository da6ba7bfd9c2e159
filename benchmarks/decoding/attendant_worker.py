"""Attendant in process: python -m benchmarks.decoding.attendant_worker BUNDLE PRECISION THREADS."""

import sys
import time
from pathlib import Path
from typing import cast

from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.bundle.manifest import Precision
from attendant.runtime.decoding.offline import decode_all
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.onnx.stepper import OnnxStepper
from benchmarks.decoding.job import Job, answer_jobs, one_by_one, sentences


def main(path: str, precision: str, num_threads: str) -> None:
    bundle = open_bundle(Path(path))
    stepper = OnnxStepper(bundle, cast(Precision, precision), "cpu", int(num_threads))

    def run(job: Job) -> list[float]:
        # The last step decides whether a hypothesis ends or is cut: as many steps as tokens and one.
        options = DecodingOptions(beam_size=job.beam_size, max_length=job.num_tokens - 1)
        if job.batch_size == 1:
            return one_by_one(job, lambda batch: decode_all(stepper, batch, options, bundle.manifest.special_ids))
        began = time.perf_counter()
        max_rows = job.batch_size * job.beam_size
        decode_all(stepper, sentences(job), options, bundle.manifest.special_ids, max_rows=max_rows)
        return [time.perf_counter() - began]

    answer_jobs(run)


if __name__ == "__main__":
    main(*sys.argv[1:])
