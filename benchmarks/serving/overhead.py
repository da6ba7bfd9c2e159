"""What serving costs beside decoding: processor time per sentence, and latency on an idle server."""

import statistics
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks.command import Context
from benchmarks.decoding.job import Job
from benchmarks.decoding.pool import Pool
from benchmarks.decoding.system import attendant, bare_graphs
from benchmarks.results import Cell, Part
from benchmarks.serving.attendant_server import BULK, UNARY, attendant_server, equal_payloads
from benchmarks.serving.generator import Load
from benchmarks.serving.load import LoadGenerator
from benchmarks.serving.served import Served, ServedSystem, mean_between

NUM_WORKERS = 2
UNARY_CLIENTS = 64
BULK_IN_FLIGHT = 2048
MS = 1e3
ECHO_PART = 4
"""Nothing is decoded: a visit to the empty service is shorter by this factor."""


def overhead(context: Context) -> Part:
    """Server's own CPU per unary call and per bulk item, above decoding as many rows at a time in process."""
    loads = {
        "unary": Load(kind="closed", num_clients=UNARY_CLIENTS, seconds=context.visit_seconds),
        "bulk": Load(kind="bulk", num_clients=BULK_IN_FLIGHT, seconds=context.visit_seconds),
    }
    served: dict[str, list[float]] = {kind: [] for kind in loads}
    speeds: dict[str, list[float]] = {kind: [] for kind in loads}
    beside: dict[str, list[float]] = {kind: [] for kind in loads}
    empty: dict[str, list[float]] = {kind: [] for kind in loads}
    rows_of: dict[str, int] = {}
    with ExitStack() as exits:
        server = exits.enter_context(Served(attendant_server(context, num_workers=NUM_WORKERS)))
        generators = {
            "unary": exits.enter_context(LoadGenerator(server)),
            "bulk": exits.enter_context(LoadGenerator(server, BULK)),
        }
        echo = exits.enter_context(Served(empty_service(equal_payloads(context))))
        echoed = {
            "unary": exits.enter_context(LoadGenerator(echo)),
            "bulk": exits.enter_context(LoadGenerator(echo, BULK)),
        }
        system = attendant(context.bundle, "int8", num_workers=NUM_WORKERS, num_threads=1)
        pool = exits.enter_context(Pool(system))
        for kind, load in loads.items():
            before = server.metrics()
            generators[kind].run(load)
            rows_of[kind] = max(1, round(mean_between("attendant_step_rows", before, server.metrics())))
            pool.run(_job(context, rows_of[kind]))
        for number in range(context.num_rounds):
            for kind, load in loads.items():
                report = generators[kind].run(load)
                served[kind].append(report.cpu_per_answer)
                speeds[kind].append(report.speed)
                job = replace(_job(context, rows_of[kind]), seed=number)
                beside[kind].append(pool.run(job).cpu_seconds / job.num_sentences)
                short = replace(load, seconds=load.seconds / ECHO_PART)
                empty[kind].append(echoed[kind].run(short).cpu_per_answer)
    rows: list[list[Cell]] = []
    figures: dict[str, float] = {}
    for kind, name in (("unary", f"unary calls, {UNARY_CLIENTS} clients"), ("bulk", "one bulk stream")):
        differences = [MS * (one - other) for one, other in zip(served[kind], beside[kind], strict=True)]
        difference = statistics.median(differences)
        whole, inside, least, speed = (statistics.median(values[kind]) for values in (served, beside, empty, speeds))
        rows.append([name, speed, str(rows_of[kind]), MS * whole, MS * inside, difference, MS * least])
        figures |= {f"{kind}_overhead_ms": difference, f"{kind}_cpu_ms": MS * whole, f"{kind}_speed": speed}
        figures |= {f"{kind}_empty_ms": MS * least}
    return Part(
        title="What serving costs",
        about=(
            "Processor time of all the server's processes per sentence, against decoding in process with as many rows "
            "at a time as the server's steps had on average; in turns, medians of the rounds. The last column: what an "
            "empty grpc.aio service takes for the same requests. No server that stands on it takes less."
        ),
        columns=[
            *("", "sentences/s", "rows per step", "server CPU ms", "in process CPU ms", "difference ms"),
            "empty service CPU ms",
        ],
        rows=rows,
        figures=figures,
    )


def idle_latency(context: Context) -> Part:
    """One client of an idle server, against the bare graphs of one sentence, with as many threads."""
    rows: list[list[Cell]] = []
    figures: dict[str, float] = {}
    load = Load(kind="closed", num_clients=1, seconds=context.visit_seconds / 2)
    for num_workers, num_threads in ((NUM_WORKERS, 1), (1, 1), (1, 2)):
        server = attendant_server(context, num_workers=num_workers, num_threads=num_workers * num_threads)
        system = bare_graphs(context.bundle, "int8", num_workers=1, num_threads=num_threads)
        job = replace(_job(context, 1), num_sentences=max(1, round(context.visit_seconds * 20)))
        latencies: dict[str, list[float]] = {"served": [], "bare": [], "empty": []}
        with ExitStack() as exits:
            running = exits.enter_context(Served(server))
            empty = exits.enter_context(Served(empty_service(server.payloads)))
            callers = {
                "served": exits.enter_context(LoadGenerator(running)),
                "empty": exits.enter_context(LoadGenerator(empty)),
            }
            pool = exits.enter_context(Pool(system))
            for caller in callers.values():
                caller.run(load)
            pool.run(job)
            for _ in range(context.num_rounds):
                for name, caller in callers.items():
                    latencies[name].append(caller.run(load).latency(50))
                latencies["bare"].append(statistics.median(pool.run(job).latencies))
        ours, limit, call = (MS * statistics.median(latencies[name]) for name in ("served", "bare", "empty"))
        options = f"--workers {num_workers} --threads {num_workers * num_threads}"
        rows.append([options, ours, limit, ours / limit, call])
        if num_workers == NUM_WORKERS:
            figures |= {"served_ms": ours, "bare_ms": limit, "empty_ms": call}
    return Part(
        title="One request on an idle server",
        about=(
            "Median latency of a unary call, beside the bare graphs of the same work on an engine's threads, and "
            "beside the same call to an empty grpc.aio service."
        ),
        columns=["server", "served ms", "bare graphs ms", "ratio", "empty service ms"],
        rows=rows,
        figures=figures,
    )


def empty_service(payloads: Path) -> ServedSystem:
    return ServedSystem(
        name="empty service",
        command=(sys.executable, "-m", "benchmarks.serving.echo_server"),
        method=UNARY,
        payloads=payloads,
    )


def _job(context: Context, batch_size: int) -> Job:
    workload = context.workload
    num_sentences = NUM_WORKERS * batch_size * max(1, round(context.visit_seconds * 512 / batch_size))
    return Job(
        num_sentences=8 if context.quick else num_sentences,
        num_tokens=workload.num_tokens,
        vocabulary_size=workload.vocabulary_size,
        batch_size=batch_size,
    )
