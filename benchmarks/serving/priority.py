"""Interactive requests beside bulk work, and a server that has nothing to do."""

import statistics
import time

from benchmarks.command import Context
from benchmarks.results import Cell, Part
from benchmarks.serving.attendant_server import BULK, attendant_server
from benchmarks.serving.generator import Load
from benchmarks.serving.load import LoadGenerator
from benchmarks.serving.served import Served

BULK_IN_FLIGHT = 2048
INTERACTIVE_RATE = 10.0
"""Requests per second: nearly each meets an otherwise idle server, or one with bulk work only."""

BULK_LEAD_SECONDS = 0.5
IDLE_SECONDS = 10.0
MS = 1e3


def priority(context: Context) -> Part:
    """p99 of an interactive trickle, alone and while a bulk stream always has work waiting."""
    seconds = 12 * context.visit_seconds
    percentiles: dict[str, list[tuple[float, float]]] = {"idle": [], "loaded": []}
    bulk_speeds = []
    with (
        Served(attendant_server(context)) as served,
        LoadGenerator(served) as interactive,
        LoadGenerator(served, BULK) as bulk,
    ):
        for number in range(min(3, context.num_rounds)):
            trickle = Load(kind="open", rate=INTERACTIVE_RATE, seconds=seconds, seed=number)
            report = interactive.run(trickle)
            percentiles["idle"].append((report.latency(50), report.latency(99)))
            bulk.begin(Load(kind="bulk", num_clients=BULK_IN_FLIGHT, seconds=seconds + 2 * BULK_LEAD_SECONDS))
            time.sleep(BULK_LEAD_SECONDS)
            report = interactive.run(trickle)
            percentiles["loaded"].append((report.latency(50), report.latency(99)))
            bulk_speeds.append(bulk.end().speed)
    rows: list[list[Cell]] = []
    figures: dict[str, float] = {}
    names = {"idle": "nothing else", "loaded": f"bulk work, {statistics.median(bulk_speeds):,.0f} sentences/s"}
    for key, name in names.items():
        p50, p99 = (MS * statistics.median(pair[place] for pair in percentiles[key]) for place in (0, 1))
        rows.append([name, p50, p99])
        figures |= {f"{key}_p50_ms": p50, f"{key}_p99_ms": p99}
    return Part(
        title="Interactive requests beside bulk work",
        about=(
            f"{INTERACTIVE_RATE:g} unary calls per second, at random moments; one bulk stream with "
            f"{BULK_IN_FLIGHT:,} requests in flight."
        ),
        columns=["beside", "p50 ms", "p99 ms"],
        rows=rows,
        figures=figures | {"bulk_speed": statistics.median(bulk_speeds)},
    )


def idle(context: Context) -> Part:
    """What a server with a model costs that nobody asks anything."""
    rows: list[list[Cell]] = []
    figures: dict[str, float] = {}
    for num_workers in (2, 1):
        with Served(attendant_server(context, num_workers=num_workers)) as served:
            with LoadGenerator(served) as generator:
                generator.run(Load(kind="closed", num_clients=8, seconds=context.visit_seconds))
            seconds = 1.0 if context.quick else IDLE_SECONDS
            began, cpu = time.monotonic(), served.cpu_seconds()
            time.sleep(seconds)
            share = (served.cpu_seconds() - cpu) / (time.monotonic() - began)
            mebibytes = served.resident_bytes() / 2**20
        rows.append([f"--workers {num_workers}", f"{100 * share:.2f} %", mebibytes])
        figures |= {f"idle_share_{num_workers}": share, f"resident_mib_{num_workers}": mebibytes}
    return Part(
        title="Idle",
        about=f"{IDLE_SECONDS:g} s after the last request; all processes together.",
        columns=["server", "share of a core", "resident MiB"],
        rows=rows,
        figures=figures | {"idle_share": max(figures["idle_share_1"], figures["idle_share_2"])},
    )
