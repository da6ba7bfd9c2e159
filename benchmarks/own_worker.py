"""Programs that run Attendant: a decoding worker, and a server with request-level batching.

They import no torch, so they start and run as a server's worker does.
"""

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.bundle.manifest import Precision
from attendant.runtime.command import exit_command
from attendant.runtime.decoding.batch import decode_all
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.onnx.session import OnnxSession, Shape
from attendant.runtime.onnx.stepper import OnnxStepper
from attendant.runtime.stepper import Array
from attendant.server.__main__ import main as serve
from attendant.server.engine.messages import EngineRequest, Priority
from attendant.server.engine.scheduler import Budget, Scheduler
from benchmarks.job import Job, Sources, answer_jobs
from benchmarks.programs import G2P_BUNDLE, g2p_words

Call = tuple[OnnxSession, Sequence[str], Mapping[str, Array]]
"""A session, the outputs that were requested, and the inputs."""


class GraphCalls:
    """Watches the sessions of a stepper, which opens them by `open`.

    Attributes:
        seconds: time in their runs.
        calls: if not None, each call is appended. Inputs are not copied. If one is overwritten later, a replay takes
            the same time and gives other results.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.calls: list[Call] | None = None

    def open(self, *arguments: Any, **options: Any) -> OnnxSession:
        """Returns a watched session; takes the arguments of `OnnxSession`."""
        watcher = self

        class WatchedSession(OnnxSession):
            def run(
                self, outputs: Sequence[str] | Mapping[str, Shape], inputs: Mapping[str, Array], **options: Any
            ) -> list[Array]:
                began = time.perf_counter()
                results = super().run(outputs, inputs, **options)
                watcher.seconds += time.perf_counter() - began
                if watcher.calls is not None:
                    watcher.calls.append((self, tuple(outputs), dict(inputs)))
                return results

        return WatchedSession(*arguments, **options)


def replay(calls: Iterable[Call]) -> None:
    """Repeats the calls one directly after another."""
    for session, outputs, inputs in calls:
        session.run(outputs, inputs)


def work(path: str, precision: str, num_threads: int, bare: bool = False) -> None:
    """Decodes jobs with a bundle.

    Args:
        bare: records the calls of the graphs once, and then replays them. No engine around them can be faster.
    """
    bundle, watcher = open_bundle(Path(path)), GraphCalls()
    open_session: Callable[..., OnnxSession] = watcher.open if bare else OnnxSession
    stepper = OnnxStepper(bundle, cast(Precision, precision), "cpu", num_threads, open_session=open_session)
    recorded: dict[tuple[int, int, int], list[Call]] = {}

    def decode(sources: Sources, job: Job) -> None:
        # The last step decides whether a hypothesis ends or is cut: one step more than tokens.
        options = DecodingOptions(beam_size=job.beam_size, max_length=job.num_tokens - 1)
        max_rows = job.batch_size * job.beam_size
        decode_all(stepper, sources, options, bundle.manifest.special_ids, max_rows=max_rows)

    def replay_decoding(sources: Sources, job: Job) -> None:
        shape = len(sources), job.num_tokens, job.beam_size
        if shape not in recorded:
            watcher.calls = recorded[shape] = []
            decode(sources, job)
            watcher.calls = None
        replay(recorded[shape])

    answer_jobs(replay_decoding if bare else decode, batches_itself=not bare)


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
    """Admits requests only when none runs, and then as many as there is room for.

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
