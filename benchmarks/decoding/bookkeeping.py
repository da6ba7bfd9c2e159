"""What the engine does outside the graphs (scheduling, search, copies), as a share of the wall time."""

import random
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from attendant.runtime.decoding.beam import BeamSearch

from attendant.runtime.bundle.bundle import Bundle, open_bundle
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.onnx.stepper import OnnxStepper
from attendant.server.engine.engine import Engine
from attendant.server.engine.queueing.scheduler import Budget
from attendant.server.engine.request import EngineRequest, Priority
from benchmarks.command import Context
from benchmarks.decoding.job import Job, sentences
from benchmarks.decoding.replay import watched_graphs
from benchmarks.results import Cell, Part

NUM_ROWS = 64
BEAM_SIZE = 4
MAX_POSITIONS = 1 << 20


@dataclass(slots=True)
class Load:
    """An engine that always has as many requests as it has room for, without a server around it."""

    bundle: Bundle
    engine: Engine
    beam_size: int
    num_tokens: int
    random: random.Random
    num_submitted: int = 0

    def refill(self, sources: list[list[int]]) -> None:
        scheduler = self.engine.scheduler
        while scheduler.num_running + scheduler.num_waiting(Priority.INTERACTIVE) < NUM_ROWS // self.beam_size:
            # The first ones end one after the other, so that later on some come and go at every step.
            first = self.num_submitted < NUM_ROWS // self.beam_size
            num_steps = self.random.randint(2, self.num_tokens) if first else self.num_tokens
            options = DecodingOptions(beam_size=self.beam_size, max_length=num_steps - 1)
            self.engine.submit(
                EngineRequest(
                    key=self.num_submitted,
                    source_ids=tuple(sources[self.num_submitted % len(sources)]),
                    search=BeamSearch.start(options, self.bundle.manifest.special_ids),
                    max_rows=self.beam_size,
                    submitted=time.monotonic(),
                )
            )
            self.num_submitted += 1


def bookkeeping(context: Context) -> Part:
    """Greedy and beam, int8 and fp32, 64 rows in one engine on one thread."""
    rows: list[list[Cell]] = []
    figures: dict[str, float] = {}
    for precision in ("int8", "fp32"):
        for beam_size, search in ((1, "greedy"), (BEAM_SIZE, f"beam {BEAM_SIZE}")):
            shares, steps = _shares(context, precision, beam_size)
            share, step = statistics.median(shares), statistics.median(steps)
            rows.append([f"{precision}, {search}", 1e3 * step, 1e3 * step * share, f"{100 * share:.1f} %"])
            figures[f"{precision}_{search.replace(' ', '_')}_share_64"] = share
    figures["greedy_share_64"] = figures["int8_greedy_share_64"]
    return Part(
        title="Bookkeeping outside the graphs",
        about=(
            f"The server's engine with {NUM_ROWS} rows in every step, on one thread, without gRPC; requests come and "
            "go all the time. A round: scheduling, encoding newcomers, one step of all rows, search, leaving. Outside: "
            "all of the round but the calls into the graphs."
        ),
        columns=["", "ms per round", "of it outside", "share"],
        rows=rows,
        figures=figures,
    )


def _shares(context: Context, precision: str, beam_size: int) -> tuple[list[float], list[float]]:
    """Shares, and seconds of a round, one entry per measured stretch."""
    bundle = open_bundle(Path(context.bundle))
    stepper = OnnxStepper(bundle, precision, "cpu", 1)  # type: ignore[arg-type]  # one of its precisions
    workload = context.workload
    engine = Engine(stepper, Budget(max_rows=NUM_ROWS, max_source_positions=MAX_POSITIONS))
    load = Load(bundle, engine, beam_size, workload.num_tokens, random.Random(1))
    job = Job(num_sentences=256, num_tokens=workload.num_tokens, vocabulary_size=workload.vocabulary_size)
    sources = sentences(job)
    num_rounds = 4 if context.quick else 4 * workload.num_tokens
    shares, seconds = [], []
    for stretch in range(1 + context.num_rounds):
        with watched_graphs(keep=False) as graphs:
            outside = 0.0
            began = time.perf_counter()
            for _ in range(num_rounds):
                submitting = time.perf_counter()
                load.refill(sources)
                outside += time.perf_counter() - submitting
                engine.step()
            # Making up requests is this benchmark's affair.
            total = time.perf_counter() - began - outside
        if stretch:  # the first one warms up
            shares.append(1 - graphs.seconds / total)
            seconds.append(total / num_rounds)
    return shares, seconds
