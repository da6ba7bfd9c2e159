"""Programs that run Attendant: decoding workers, and a server with request-level batching.

They import no torch, so they start and run as a server's worker does.
"""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.bundle.manifest import Precision
from attendant.runtime.command import exit_command
from attendant.runtime.decoding.batch import decode_all
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.onnx.stepper import OnnxStepper
from attendant.server.__main__ import main as serve
from attendant.server.engine.messages import EngineRequest, Priority
from attendant.server.engine.scheduler import Budget, Scheduler
from benchmarks.job import Job, Sources, answer_jobs
from benchmarks.programs import G2P_BUNDLE, g2p_words


def work(path: str, precision: str, num_threads: int) -> None:
    """Decodes jobs with a bundle."""
    bundle = open_bundle(Path(path))
    stepper = OnnxStepper(bundle, cast(Precision, precision), "cpu", num_threads)

    def decode(sources: Sources, job: Job) -> None:
        # The last step decides whether a hypothesis ends or is cut: one step more than tokens.
        options = DecodingOptions(beam_size=job.beam_size, max_length=job.num_tokens - 1)
        max_rows = job.batch_size * job.beam_size
        decode_all(stepper, sources, options, bundle.manifest.special_ids, max_rows=max_rows)

    answer_jobs(decode, batches_itself=True)


def pronounce() -> None:
    """Pronounces words greedily in int8 on one thread."""
    bundle = open_bundle(G2P_BUNDLE)
    stepper = OnnxStepper(bundle, "int8", "cpu", 1)
    options = DecodingOptions(max_length=bundle.manifest.limits.max_target_tokens)

    def decode(batch: list[str], job: Job) -> None:
        sources = [bundle.source_ids(bundle.source_tokenizer.encode(word)) for word in batch]
        for hypotheses in decode_all(stepper, sources, options, bundle.manifest.special_ids, max_rows=job.batch_size):
            bundle.target_tokenizer.decode(hypotheses[0].token_ids)

    answer_jobs(decode, batches_itself=True, sources=g2p_words)


class RequestLevelScheduler(Scheduler):
    """Admits requests only when none runs, and then all that there is room for.

    Requests that end earlier than the others of their batch are answered at once.
    """

    def __init__(self, budget: Budget) -> None:
        super().__init__(replace(budget, bulk_seconds=None))

    def admit(self, priority: Priority) -> list[EngineRequest]:
        return [] if self.num_running(priority) else super().admit(priority)


def serve_per_request(arguments: list[str]) -> None:
    """Runs our server with request-level batching; takes the server's options."""
    sys.argv[1:] = arguments
    exit_command("request-level server", partial(serve, RequestLevelScheduler))
