"""What the engine does outside the graphs (scheduling, search, copies), as a share of the wall time."""

import itertools
import random
import time
from collections.abc import Iterator

from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.bundle.manifest import Precision
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.onnx.stepper import OnnxStepper
from attendant.server.engine.engine import Engine
from attendant.server.engine.queueing.scheduler import Budget
from attendant.server.engine.request import EngineRequest, Priority
from benchmarks.command import Context
from benchmarks.decoding.graph_calls import GraphCalls
from benchmarks.decoding.in_process import PRECISIONS, SEARCHES, job_of
from benchmarks.harness.measurement import Columns, System, Visits, measure, part_of
from benchmarks.harness.results import Part
from benchmarks.job import sentences

NUM_ROWS = 64
MAX_POSITIONS = 1 << 20


def bookkeeping(context: Context) -> Part:
    """Bookkeeping outside the graphs.

    The server's engine with 64 rows in every step, on one thread, without gRPC; requests come and go all the time. A
    round: scheduling, encoding newcomers, one step of all rows, search, leaving. Outside: all of the round but the
    calls into the graphs.
    """
    systems = [_system(context, precision, search) for precision in PRECISIONS for search in SEARCHES]
    found = measure(systems, num_rounds=context.num_rounds, say=context.say)
    columns: Columns = {
        "ms per round": "ms",
        "of it outside": lambda one: one.median("ms") * one.median("share_64"),
        "share": lambda one: f"{100 * one.median('share_64'):.1f} %",
    }
    return part_of(found, columns, what="")


def _system(context: Context, precision: Precision, search: str) -> System:
    """An engine that always has as many requests as it has room for."""
    num_rounds = 4 if context.quick else 4 * context.workload.num_tokens
    num_requests = NUM_ROWS // SEARCHES[search]

    def start() -> Iterator[Visits]:
        bundle, graphs = open_bundle(context.bundle), GraphCalls()
        stepper = OnnxStepper(bundle, precision, "cpu", 1, open_session=graphs.open)
        budget = Budget(max_rows=NUM_ROWS, max_source_positions=MAX_POSITIONS)
        engine = Engine(stepper, budget, bundle.manifest.special_ids)
        requests = _requests(context, SEARCHES[search])

        def visit(number: int) -> dict[str, float]:
            graphs.seconds = seconds = 0.0
            for _ in range(num_rounds):
                while engine.scheduler.num_running + engine.scheduler.num_waiting(Priority.INTERACTIVE) < num_requests:
                    engine.submit(next(requests))
                began = time.perf_counter()
                engine.step()
                seconds += time.perf_counter() - began
            return {"share_64": 1 - graphs.seconds / seconds, "ms": 1e3 * seconds / num_rounds}

        visit(0)  # warms up
        yield {"": visit}

    return System(key=f"{precision}_{search.replace(' ', '_')}", name=f"{precision}, {search}", start=start)


def _requests(context: Context, beam_size: int) -> Iterator[EngineRequest]:
    """Without end. The first ones end one after the other, so that later on some come and go at every step."""
    generator, num_tokens = random.Random(1), context.workload.num_tokens
    for key, source in enumerate(itertools.cycle(sentences(job_of(context)))):
        num_steps = generator.randint(2, num_tokens) if key < NUM_ROWS // beam_size else num_tokens
        options = DecodingOptions(beam_size=beam_size, max_length=num_steps - 1)
        yield EngineRequest(key=key, source_ids=tuple(source), options=options, submitted=time.monotonic())
