"""What the engine does outside the graphs (scheduling, search, copies), as a share of the wall time."""

import random
import time
from collections.abc import Iterator
from typing import cast

from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.bundle.manifest import Precision
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.onnx.stepper import OnnxStepper
from attendant.server.engine.engine import Engine
from attendant.server.engine.queueing.scheduler import Budget
from attendant.server.engine.request import EngineRequest, Priority
from benchmarks.command import Context
from benchmarks.decoding.graph_calls import GraphCalls
from benchmarks.decoding.in_process import BEAM_SIZE, job_of
from benchmarks.harness.measurement import System, Visits, figures, measure
from benchmarks.harness.results import Cell, Part
from benchmarks.job import sentences

NUM_ROWS = 64
MAX_POSITIONS = 1 << 20


def bookkeeping(context: Context) -> Part:
    """Bookkeeping outside the graphs.

    The server's engine with 64 rows in every step, on one thread, without gRPC; requests come and go all the time. A
    round: scheduling, encoding newcomers, one step of all rows, search, leaving. Outside: all of the round but the
    calls into the graphs.
    """
    systems = [
        _system(context, precision, search, beam_size)
        for precision in ("int8", "fp32")
        for search, beam_size in {"greedy": 1, f"beam {BEAM_SIZE}": BEAM_SIZE}.items()
    ]
    found = measure(systems, num_rounds=context.num_rounds, say=context.say)
    rows: list[list[Cell]] = []
    for one in found:
        share, ms = one.median("share_64"), one.median("ms")
        rows.append([one.system.name, ms, ms * share, f"{100 * share:.1f} %"])
    return Part(columns=["", "ms per round", "of it outside", "share"], rows=rows, figures=figures(found))


def _system(context: Context, precision: str, search: str, beam_size: int) -> System:
    def start() -> Iterator[Visits]:
        load = _Load(context, precision, beam_size)
        load.visit(0)  # warms up
        yield {"": load.visit}

    return System(key=f"{precision}_{search.replace(' ', '_')}", name=f"{precision}, {search}", start=start)


class _Load:
    """An engine that always has as many requests as it has room for, without a server around it."""

    def __init__(self, context: Context, precision: str, beam_size: int) -> None:
        bundle = open_bundle(context.bundle)
        self._graphs = GraphCalls()
        stepper = OnnxStepper(bundle, cast(Precision, precision), "cpu", 1, open_session=self._graphs.open)
        budget = Budget(max_rows=NUM_ROWS, max_source_positions=MAX_POSITIONS)
        self._engine = Engine(stepper, budget, bundle.manifest.special_ids)
        self._beam_size = beam_size
        self._num_tokens = context.workload.num_tokens
        self._num_rounds = 4 if context.quick else 4 * self._num_tokens
        self._sources = sentences(job_of(context))
        self._random = random.Random(1)
        self._num_submitted = 0

    def visit(self, number: int) -> dict[str, float]:
        """Rounds of the engine: ms of one, and the share of it outside the graphs."""
        self._graphs.seconds = seconds = 0.0
        for _ in range(self._num_rounds):
            self._refill()  # making up requests is this benchmark's affair
            began = time.perf_counter()
            self._engine.step()
            seconds += time.perf_counter() - began
        return {"share_64": 1 - self._graphs.seconds / seconds, "ms": 1e3 * seconds / self._num_rounds}

    def _refill(self) -> None:
        scheduler, num_requests = self._engine.scheduler, NUM_ROWS // self._beam_size
        while scheduler.num_running + scheduler.num_waiting(Priority.INTERACTIVE) < num_requests:
            # The first ones end one after the other, so that later on some come and go at every step.
            first = self._num_submitted < num_requests
            num_steps = self._random.randint(2, self._num_tokens) if first else self._num_tokens
            options = DecodingOptions(beam_size=self._beam_size, max_length=num_steps - 1)
            source_ids = tuple(self._sources[self._num_submitted % len(self._sources)])
            key, now = self._num_submitted, time.monotonic()
            self._engine.submit(EngineRequest(key=key, source_ids=source_ids, options=options, submitted=now))
            self._num_submitted += 1
