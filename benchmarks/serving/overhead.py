"""What serving costs beside decoding: processor time per sentence, latency on an idle server, and idling itself."""

import statistics
import time
from dataclasses import replace

from attendant.server.bench.load import Load
from benchmarks.command import Context
from benchmarks.decoding.in_process import NUM_ALONE, NUM_WORKERS, job_of, own_decoder, workers
from benchmarks.harness.measurement import Samples, measure, running_system
from benchmarks.harness.results import Cell, Part
from benchmarks.job import Job
from benchmarks.serving.closed_loop import MAX_ROUNDS
from benchmarks.serving.payloads import EQUAL
from benchmarks.serving.servers import attendant_server, empty_service, mean_of, running

BULK_IN_FLIGHT = 2048
ECHO_PART = 4
"""Nothing is decoded: a visit to the empty service is shorter by this factor."""

INTERACTIVE_RATE = 10.0
"""Requests per second: nearly each meets an otherwise idle server, or one with bulk work only."""

BULK_LEAD_SECONDS = 0.5
IDLE_SECONDS = 10.0


def overhead(context: Context) -> Part:
    """What serving costs.

    Processor time of all the server's processes per sentence, against decoding in process with as many rows at a time
    as the server's steps had on average; in turns, medians of the rounds. The last column: what an empty grpc.aio
    service takes for the same requests. No server that stands on it takes less.
    """
    loads = {
        "unary": Load(kind="closed", num_clients=64, seconds=context.visit_seconds),
        "list": Load(kind="list", num_clients=1, seconds=context.visit_seconds),
        "bulk": Load(kind="bulk", num_clients=BULK_IN_FLIGHT, seconds=context.visit_seconds),
    }
    jobs: dict[str, Job] = {}
    with (
        running(attendant_server(context)) as server,
        running(empty_service(EQUAL.payloads(context))) as empty,
        workers(own_decoder(context, "int8", num_workers=NUM_WORKERS)) as pool,
    ):
        for kind, load in loads.items():
            _, grown = server.watched(load)
            num_rows = max(1, round(mean_of("attendant_step_rows", grown)))
            jobs[kind] = pool.fastest(job_of(context), context.visit_seconds, [num_rows])
        short = {kind: replace(load, seconds=load.seconds / ECHO_PART) for kind, load in loads.items()}
        systems = [
            running_system("served", "server", {f"_{kind}": server.visit(load) for kind, load in loads.items()}),
            running_system("inside", "in process", {f"_{kind}": pool.visit(job) for kind, job in jobs.items()}),
            running_system("empty", "empty service", {f"_{kind}": empty.visit(load) for kind, load in short.items()}),
        ]
        served, inside, least = measure(systems, num_rounds=context.num_rounds, say=context.say)
    rows: list[list[Cell]] = []
    found: dict[str, float] = {}
    names = {"unary": "unary calls, 64 clients", "list": "lists of 256, one client", "bulk": "one bulk stream"}
    for kind, name in names.items():
        pairs = zip(served.samples[f"cpu_ms_{kind}"], inside.samples[f"cpu_ms_{kind}"], strict=True)
        difference = statistics.median(one - other for one, other in pairs)
        speed, cpu = served.median(f"speed_{kind}"), served.median(f"cpu_ms_{kind}")
        within, call = inside.median(f"cpu_ms_{kind}"), least.median(f"cpu_ms_{kind}")
        rows.append([name, speed, str(jobs[kind].batch_size), cpu, within, difference, call])
        found |= {f"{kind}_overhead_ms": difference, f"{kind}_cpu_ms": cpu}
        found |= {f"{kind}_speed": speed, f"{kind}_empty_ms": call}
    columns = ["", "sentences/s", "rows per step", "server CPU ms", "in process CPU ms", "difference ms"]
    return Part(columns=[*columns, "empty service CPU ms"], rows=rows, figures=found)


def idle_latency(context: Context) -> Part:
    """One request on an idle server.

    Median latency of a unary call, beside the bare graphs of the same work on an engine's threads, and beside the same
    call to an empty grpc.aio service.
    """
    rows: list[list[Cell]] = []
    compared: dict[str, float] = {}
    load = Load(kind="closed", num_clients=1, seconds=context.visit_seconds / 2)
    for num_workers, num_threads in ((NUM_WORKERS, 1), (1, 1), (1, 2)):
        server = attendant_server(context, num_workers=num_workers, num_threads=num_workers * num_threads)
        with (
            running(server) as served,
            running(empty_service(server.payloads())) as empty,
            workers(own_decoder(context, "int8", num_threads=num_threads, bare=True)) as bare,
        ):
            alone = bare.visit(bare.fastest(job_of(context, num_sentences=NUM_ALONE), load.seconds, [1]))
            visits = {"server": served.visit(load), "bare graphs": alone, "empty service": empty.visit(load)}
            for warm_up in visits.values():
                warm_up(0)
            systems = [running_system(name, name, {"": visit}) for name, visit in visits.items()]
            ours, limit, call = measure(systems, num_rounds=context.num_rounds, say=context.say)
        found = {"served_ms": ours.median("p50"), "bare_ms": limit.median("ms"), "empty_ms": call.median("p50")}
        options = f"--workers {num_workers} --threads {num_workers * num_threads}"
        ratio = found["served_ms"] / found["bare_ms"]
        rows.append([options, found["served_ms"], found["bare_ms"], ratio, found["empty_ms"]])
        compared = compared or found  # the first layout's
    columns = ["server", "served ms", "bare graphs ms", "ratio", "empty service ms"]
    return Part(columns=columns, rows=rows, figures=compared)


def priority(context: Context) -> Part:
    """Interactive requests beside bulk work.

    10 unary calls per second, at random moments; one bulk stream with 2,048 requests in flight.
    """
    seconds = 12 * context.visit_seconds
    trickle = Load(kind="open", rate=INTERACTIVE_RATE, seconds=seconds)
    bulk = Load(kind="bulk", num_clients=BULK_IN_FLIGHT, seconds=seconds + 2 * BULK_LEAD_SECONDS)
    with running(attendant_server(context)) as server:
        interactive = server.visit(trickle)

        def loaded(number: int) -> Samples:
            server.begin(bulk)
            time.sleep(BULK_LEAD_SECONDS)
            return {**interactive(number), "bulk_speed": server.end(bulk)["speed"]}

        visits = {"_idle": interactive, "_loaded": loaded}
        system = running_system("attendant", "interactive requests", visits)
        (found,) = measure([system], num_rounds=min(MAX_ROUNDS, context.num_rounds), say=context.say)
    speed = found.median("bulk_speed_loaded")
    names = {"idle": "nothing else", "loaded": f"bulk work, {speed:,.0f} sentences/s"}
    figures = {f"{key}_{p}_ms": found.median(f"{p}_{key}") for key in names for p in ("p50", "p99")}
    rows: list[list[Cell]] = [[name, figures[f"{key}_p50_ms"], figures[f"{key}_p99_ms"]] for key, name in names.items()]
    return Part(columns=["beside", "p50 ms", "p99 ms"], rows=rows, figures=figures | {"bulk_speed": speed})


def idle(context: Context) -> Part:
    """Idle.

    10 s after the last request; all processes together.
    """
    rows: list[list[Cell]] = []
    figures: dict[str, float] = {}
    for num_workers in (2, 1):
        with running(attendant_server(context, num_workers=num_workers)) as server:
            server.load(Load(kind="closed", num_clients=8, seconds=context.visit_seconds))
            began, cpu = time.monotonic(), server.process.cpu_seconds()
            time.sleep(1.0 if context.quick else IDLE_SECONDS)
            share = (server.process.cpu_seconds() - cpu) / (time.monotonic() - began)
            mebibytes = server.process.resident_bytes() / 2**20
        rows.append([f"--workers {num_workers}", f"{100 * share:.2f} %", mebibytes])
        figures |= {f"idle_share_{num_workers}": share, f"resident_mib_{num_workers}": mebibytes}
    figures["idle_share"] = max(figures["idle_share_1"], figures["idle_share_2"])
    return Part(columns=["server", "share of a core", "resident MiB"], rows=rows, figures=figures)
