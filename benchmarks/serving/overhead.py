"""What serving costs beside decoding: processor time per sentence, a request's latency and its parts, and idling."""

import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict, replace

from attendant.runtime.process import available_cpus
from attendant.server.bench.load import MESSAGE_SIZE, Answered, Load
from benchmarks.command import Context
from benchmarks.decoding.bookkeeping import engine_system
from benchmarks.decoding.in_process import NUM_ALONE, NUM_WORKERS, job_of, own_decoder
from benchmarks.harness.measurement import Samples, measure, running_system
from benchmarks.harness.results import Cell, Part, Picture
from benchmarks.serving.loops import MAX_ROUNDS
from benchmarks.serving.payloads import equal_work, generate_requests, real_work
from benchmarks.serving.servers import attendant_server, empty_service, load_generator, mean_of, running, under

BULK_IN_FLIGHT = 2048
ECHO_PART = 4
"""Nothing is decoded: a visit to the empty service is shorter by this factor."""

INTERACTIVE_RATE = 10.0
"""Requests per second: nearly each meets an otherwise idle server, or one with bulk work only."""

BULK_LEAD_SECONDS = 0.5
IDLE_SECONDS = 10.0

PHASES = {
    "step": "steps: the graph",
    "search": "steps: search",
    "select": "steps: rows that leave",
    "encode": "others are encoded meanwhile",
    "admit": "admission",
}
"""What an engine does while a request is decoded, by the names of attendant_step_seconds."""


def overhead(context: Context) -> Part:
    """What serving costs.

    Processor time of all the server's processes per sentence, against decoding in process with as many rows at a time
    as the server's steps had on average; in turns, medians of the rounds. The last column: what an empty grpc.aio
    service takes for the same requests. No server that stands on it takes less.

    Bound, of unary calls: how many requests per second these processors could answer if nothing cost processor time but
    the calls of the graphs, with as many rows, the empty service and the load generator.
    """
    loads = {
        "_unary": Load(kind="closed", num_clients=64, seconds=context.visit_seconds),
        "_list": Load(kind="list", num_clients=1, seconds=context.visit_seconds),
        "_bulk": Load(kind="bulk", num_clients=BULK_IN_FLIGHT, seconds=context.visit_seconds),
        "_bulk_lists": Load(kind="bulk-lists", num_clients=BULK_IN_FLIGHT, seconds=context.visit_seconds),
    }
    short = {kind: replace(load, seconds=max(0.1, load.seconds / ECHO_PART)) for kind, load in loads.items()}
    server = attendant_server(context)
    (rows_of,) = measure([under(server, loads)], num_rounds=1)
    num_rows = {kind: max(1, round(rows_of.median(f"step_rows{kind}"))) for kind in loads}
    jobs = {kind: job_of(context, batch_size=number) for kind, number in num_rows.items()}
    real_lengths = attendant_server(context, requests=generate_requests(real_work(context)))
    systems = [
        under(server, loads),
        own_decoder(context, "int8", num_workers=NUM_WORKERS).system(jobs, context.visit_seconds),
        under(empty_service(server.requests), short),
        under(real_lengths, {"_unary": loads["_unary"]}),
        engine_system(context, "int8", "greedy", num_rows=num_rows["_unary"]),
        engine_system(context, "int8", "greedy", num_rows=num_rows["_unary"], work=real_work),
    ]
    *found, real_served, equal, real = measure(systems, context.num_rounds)
    columns = ["", "sentences/s", "rows per step", "server CPU ms", "in process CPU ms", "difference ms"]
    part = Part(columns=[*columns, "empty service CPU ms"])
    names = {
        "unary": "unary calls, 64 clients",
        "list": "lists of 256, one client",
        "bulk": "one bulk stream",
        "bulk_lists": f"one bulk stream, {MESSAGE_SIZE} requests in a message",
    }
    for kind, name in names.items():
        served, inside, empty = (one.at(f"_{kind}") for one in found)
        pairs = zip(served.samples["cpu_ms"], inside.samples["cpu_ms"], strict=True)
        difference = statistics.median(one - other for one, other in pairs)
        speed, cpu, least = served.median("speed"), served.median("cpu_ms"), empty.median("cpu_ms")
        part.rows.append([name, speed, str(num_rows[f"_{kind}"]), cpu, inside.median("cpu_ms"), difference, least])
        figures = {"overhead_ms": difference, "cpu_ms": cpu, "speed": speed, "empty_ms": least}
        part.figures.update({f"{kind}_{figure}": value for figure, value in figures.items()})
    part.figures["real_speed"] = real_served.median("speed_unary")
    for kind, graphs, served in (("unary", equal, found[0]), ("real", real, real_served)):
        cpu = graphs.median("graphs_ms") + part.figures["unary_empty_ms"] + served.median("generator_ms_unary")
        part.figures[f"{kind}_bound_speed"] = 1e3 * available_cpus() / cpu
    return part


def idle_latency(context: Context) -> Part:
    """One request on an idle server.

    Median latency of a unary call, beside the bare graphs of the same work on an engine's threads, and beside the same
    call to an empty grpc.aio service.
    """
    part = Part(columns=["server", "served ms", "bare graphs ms", "ratio", "empty service ms"])
    load = Load(kind="closed", num_clients=1, seconds=context.visit_seconds / 2)
    job = job_of(context, num_sentences=NUM_ALONE, batch_size=1)
    for num_workers, num_threads in ((NUM_WORKERS, 1), (1, 1), (1, 2)):
        server = attendant_server(context, num_workers=num_workers, num_threads=num_workers * num_threads)
        bare = own_decoder(context, "int8", num_threads=num_threads, bare=True)
        systems = [
            under(server, {"": load}),
            bare.system({"": job}, load.seconds),
            under(empty_service(server.requests), {"": load}),
        ]
        served, limit, empty = measure(systems, context.num_rounds)
        found = {"served_ms": served.median("p50"), "bare_ms": limit.median("ms"), "empty_ms": empty.median("p50")}
        found["bound_ms"] = found["bare_ms"] + found["empty_ms"]
        ratio = found["served_ms"] / found["bare_ms"]
        layout = f"--workers {num_workers} --threads {num_workers * num_threads}"
        part.rows.append([layout, found["served_ms"], found["bare_ms"], ratio, found["empty_ms"]])
        part.figures.update(part.figures or found)  # the first layout's
    return part


def request_time(context: Context) -> Part:
    """Where a request's time goes.

    Mean times of a unary call in a closed loop, as the server's metrics have them. Outside: what the client measures
    above attendant_request_seconds. The server's process: what that is above the engine's parts, among it the time for
    which a worker holds an answer. A request that has rows waits for all that its engine does, so that time is parted
    as the engine's whole time is.
    """
    loads = {
        "1 client": (equal_work, 1),
        "64 clients": (equal_work, 64),
        "64 clients, real lengths": (real_work, 64),
    }
    found: dict[str, dict[str, float]] = {}
    for name, (work, num_clients) in loads.items():
        with running(attendant_server(context, requests=generate_requests(work(context)))) as server:
            load = Load(kind="closed", num_clients=num_clients, seconds=2 * context.visit_seconds)
            server.load(load)
            figures, grown = server.watched(load)
            found[name] = request_parts(1e3 * num_clients / figures["speed"], grown)
    names = list(next(iter(found.values())))
    totals = {name: sum(parts.values()) for name, parts in found.items()}
    rows: list[list[Cell]] = [[part, *(found[name][part] for name in found)] for part in names]
    picture = Picture(
        file="request-time.svg",
        title="Where a request's time goes",
        x_label="% of its latency",
        y_label="",
        series={
            part: [(number, 100 * found[name][part] / totals[name]) for number, name in enumerate(found)]
            for part in names
        },
        bars=[f"{name}: {total:,.0f} ms" for name, total in totals.items()],
    )
    return Part(
        columns=["ms per request", *found],
        rows=[*rows, ["all", *totals.values()]],
        figures={f"{name}, {part}": value for name, parts in found.items() for part, value in parts.items()},
        pictures=[picture],
    )


def request_parts(latency: float, grown: Mapping[str, float]) -> dict[str, float]:
    """Milliseconds of a mean latency, by what they are spent on, of the `growth` of metrics under load."""
    request, queue, encode, decode = (
        1e3 * mean_of(f"attendant_{name}_seconds", grown) for name in ("request", "queue", "encode", "decode")
    )
    spent_in = {phase: grown[f"attendant_step_seconds_sum{{{phase}}}"] for phase in PHASES}
    in_engine = {what: (encode + decode) * spent_in[phase] / sum(spent_in.values()) for phase, what in PHASES.items()}
    in_engine[PHASES["encode"]] -= encode
    return {
        "outside: gRPC, the client": max(0.0, latency - request),
        "the server's process": request - queue - encode - decode,
        "on the way to the engine, and waiting": queue,
        "its encoding": encode,
        **{what: max(0.0, milliseconds) for what, milliseconds in in_engine.items()},
    }


def priority(context: Context) -> Part:
    """Interactive requests beside bulk work.

    10 unary calls per second, at random moments; one bulk stream with 2,048 requests in flight.
    """
    seconds = 12 * context.visit_seconds
    trickle = Load(kind="open", rate=INTERACTIVE_RATE, seconds=seconds)
    bulk = Load(kind="bulk", num_clients=BULK_IN_FLIGHT, seconds=seconds + 2 * BULK_LEAD_SECONDS)
    server = attendant_server(context)
    with running(server) as run, load_generator(run.addresses["serving"], server.requests) as other:
        interactive = run.visit(trickle)

        def loaded(number: int) -> Samples:
            other.ask(asdict(bulk))
            time.sleep(BULK_LEAD_SECONDS)
            found, beside = interactive(number), Answered(**other.answer())
            return {**found, "bulk_speed": len(beside.latencies) / beside.seconds}

        visits = {"_idle": interactive, "_loaded": loaded}
        system = running_system("attendant", "interactive requests", visits)
        (found,) = measure([system], min(MAX_ROUNDS, context.num_rounds))
    speed = found.median("bulk_speed_loaded")
    names = {"idle": "nothing else", "loaded": f"bulk work, {speed:,.0f} sentences/s"}
    figures = {f"{key}_{p}_ms": found.median(f"{p}_{key}") for key in names for p in ("p50", "p99")}
    rows: list[list[Cell]] = [[name, figures[f"{key}_p50_ms"], figures[f"{key}_p99_ms"]] for key, name in names.items()]
    return Part(columns=["beside", "p50 ms", "p99 ms"], rows=rows, figures=figures | {"bulk_speed": speed})


def idle(context: Context) -> Part:
    """Idle.

    10 s after the last request; all processes together.
    """
    part = Part(columns=["server", "share of a core", "resident MiB"])
    for num_workers in (2, 1):
        with running(attendant_server(context, num_workers=num_workers)) as server:
            server.load(Load(kind="closed", num_clients=8, seconds=context.visit_seconds))
            began, cpu = time.monotonic(), server.process.cpu_seconds()
            time.sleep(1.0 if context.quick else IDLE_SECONDS)
            share = (server.process.cpu_seconds() - cpu) / (time.monotonic() - began)
            mebibytes = server.process.resident_bytes() / 2**20
        part.rows.append([f"--workers {num_workers}", f"{100 * share:.2f} %", mebibytes])
        part.figures.update({f"idle_share_{num_workers}": share, f"resident_mib_{num_workers}": mebibytes})
    part.figures["idle_share"] = max(part.figures["idle_share_1"], part.figures["idle_share_2"])
    return part
