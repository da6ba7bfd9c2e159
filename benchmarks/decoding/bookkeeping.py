"""What the engine does outside the graphs (scheduling, search, copies), as a share of the wall time."""

import itertools
import random
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from attendant.runtime.bundle.bundle import open_bundle
from attendant.runtime.bundle.manifest import Precision
from attendant.runtime.decoding.options import DecodingOptions
from attendant.runtime.onnx.stepper import OnnxStepper
from attendant.server.engine.engine import Engine
from attendant.server.engine.request import EngineRequest, Priority
from attendant.server.engine.scheduler import Budget
from benchmarks.command import Context
from benchmarks.decoding.graph_calls import GraphCalls
from benchmarks.decoding.in_process import PRECISIONS, SEARCHES
from benchmarks.harness.measurement import Columns, System, Visits, measure, part_of
from benchmarks.harness.results import Part
from benchmarks.job import Sources
from benchmarks.serving.payloads import Work, equal_work

NUM_ROWS = 64
MAX_POSITIONS = 1 << 20


def bookkeeping(context: Context) -> Part:
    """Bookkeeping outside the graphs.

    The server's engine with 64 rows in every step, on one thread, without gRPC; requests come and go all the time. A
    round: scheduling, encoding newcomers, one step of all rows, search, leaving. Outside: all of the round but the
    calls into the graphs.
    """
    systems = [engine_system(context, precision, search) for precision in PRECISIONS for search in SEARCHES]
    found = measure(systems, context.num_rounds)
    columns: Columns = {
        "ms per round": "ms",
        "of it outside": lambda one: one.median("ms") * one.median("share_64"),
        "share": lambda one: f"{100 * one.median('share_64'):.1f} %",
    }
    return part_of(found, columns, what="")


def engine_system(
    context: Context,
    precision: Precision,
    search: str,
    *,
    num_rows: int = NUM_ROWS,
    work: Callable[[Context], Work] = equal_work,
    path: Path | None = None,
) -> System:
    """An engine that always has as many requests as it has room for.

    Its figures: the milliseconds of a round, the share of them outside the graphs, and the milliseconds that the graphs
    take for each request.

    Args:
        path: of the bundle; None: the context's.
    """
    num_tokens = context.workload.num_tokens
    num_rounds = 4 * num_tokens if context.quick else 20 * num_tokens
    num_requests = num_rows // SEARCHES[search]

    def start() -> Iterator[Visits]:
        bundle, graphs = open_bundle(path or context.bundle), GraphCalls()
        stepper = OnnxStepper(bundle, precision, "cpu", 1, open_session=graphs.open)
        budget = Budget(max_rows=num_rows, max_source_positions=MAX_POSITIONS)
        engine = Engine(stepper, budget, bundle.manifest.special_ids)
        # The first ones end one after the other, so that later on some come and go at every step.
        generator = random.Random(1)
        firsts = [generator.randint(2, num_tokens) for _ in range(num_requests)]
        asked = work(context)
        num_steps = itertools.chain(firsts, itertools.cycle([steps for _, steps in asked]))
        requests = engine_requests([source for source, _ in asked], num_steps, SEARCHES[search])

        def visit(number: int) -> dict[str, float]:
            graphs.seconds = seconds = 0.0
            num_answers = 0
            for _ in range(num_rounds):
                fill(engine, requests, num_requests)
                began = time.perf_counter()
                num_answers += len(engine.step().outcomes)
                seconds += time.perf_counter() - began
            milliseconds = {"ms": 1e3 * seconds / num_rounds, "graphs_ms": 1e3 * graphs.seconds / num_answers}
            return {"share_64": 1 - graphs.seconds / seconds, **milliseconds}

        visit(0)  # warms up
        yield {"": visit}

    return System(key=f"{precision}_{search.replace(' ', '_')}", name=f"{precision}, {search}", start=start)


def engine_requests(sources: Sources, num_steps: Iterable[int], beam_size: int = 1) -> Iterator[EngineRequest]:
    """The sources in turn, again and again, each with the next number of steps, as long as there is one."""
    for key, (source, steps) in enumerate(zip(itertools.cycle(sources), num_steps)):
        options = DecodingOptions(beam_size=beam_size, max_length=steps - 1)
        yield EngineRequest(key, tuple(source), options, time.monotonic())


def fill(engine: Engine, requests: Iterator[EngineRequest], number: int) -> None:
    """Submits so many that this number runs or waits."""
    scheduler, priority = engine.scheduler, Priority.INTERACTIVE
    while scheduler.num_running(priority) + scheduler.num_waiting(priority) < number:
        engine.submit(next(requests))
