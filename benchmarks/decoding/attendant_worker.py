"""Attendant in process: python -m benchmarks.decoding.attendant_worker BUNDLE PRECISION THREADS [bare].

`bare`: the step loop without anything around it. The calls into the graphs of decoding a batch are recorded once and
made again: the limit of any engine around these graphs.
"""

import sys
from pathlib import Path
from typing import cast

from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.bundle.manifest import Precision
from attendant.runtime.decoding.batch import decode_all
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.onnx.session import OnnxSession
from attendant.runtime.onnx.stepper import OnnxStepper
from benchmarks.decoding.graph_calls import Call, GraphCalls, replay
from benchmarks.job import Job, Sources, answer_jobs


def main(path: str, precision: str, num_threads: str, mode: str = "") -> None:
    bundle, calls, is_bare = open_bundle(Path(path)), GraphCalls(), mode == "bare"
    open_session = calls.open if is_bare else OnnxSession
    stepper = OnnxStepper(bundle, cast(Precision, precision), "cpu", int(num_threads), open_session=open_session)
    recorded: dict[tuple[int, int, int], list[Call]] = {}

    def decode(sources: Sources, job: Job) -> None:
        # The last step decides whether a hypothesis ends or is cut: as many steps as tokens and one.
        options = DecodingOptions(beam_size=job.beam_size, max_length=job.num_tokens - 1)
        max_rows = job.batch_size * job.beam_size
        decode_all(stepper, sources, options, bundle.manifest.special_ids, max_rows=max_rows)

    def replay_decoding(sources: Sources, job: Job) -> None:
        shape = len(sources), job.num_tokens, job.beam_size
        if shape not in recorded:
            calls.kept = recorded[shape] = []
            decode(sources, job)
            calls.kept = None
        replay(recorded[shape])

    answer_jobs(replay_decoding if is_bare else decode, batches_itself=not is_bare)


if __name__ == "__main__":
    main(*sys.argv[1:])
