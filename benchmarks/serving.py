"""Measures servers under load: closed loops, random arrivals, overhead, memory, idling."""

import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace

from attendant.runtime.process import available_cpus
from attendant.server.bench.load import MESSAGE_SIZE, Answered, Load
from benchmarks.decoding import NUM_ALONE, NUM_WORKERS, engine_system, own_decoder
from benchmarks.harness import Columns, Samples, System, measure, part_of, resident_bytes, tree
from benchmarks.job import Job, sentences
from benchmarks.results import Cell, Part, Picture
from benchmarks.servers import (
    Server,
    attendant_server,
    empty_service,
    load_generator,
    mean_of,
    requests_of,
    running,
    under,
)
from benchmarks.workload import MAX_BEAM_SIZE, NUM_REQUESTS, QUICK, Context, equal_work, generate_request, real_work

MAX_ROUNDS = 3
MANY_CLIENTS = 64
BULK_IN_FLIGHT = 2048


def closed_loops(context: Context, servers: Sequence[Server], clients: Sequence[int]) -> Part:
    """Loads each server in turn, in every round, by every number of clients.

    A row per server and number of clients; the figures of servers with one key are those of the fastest.
    """
    seconds = 2 * context.visit_seconds
    loads = {f"_{num}": Load(kind="closed", num_clients=num, seconds=seconds) for num in clients}
    measurements = measure([under(server, loads) for server in servers], min(MAX_ROUNDS, context.num_rounds))
    columns: Columns = {
        "clients": lambda m: m.point.removeprefix("_"),
        "requests/s": "speed",
        "p50 ms": "p50",
        "p99 ms": "p99",
        "server CPU ms/request": "cpu_ms",
        "remarks": lambda m: m.system.about,
    }
    return part_of(measurements, columns, title="server", points=loads, best_by=f"speed_{clients[-1]}")


def first_token(context: Context) -> Part:
    """Time to the first token.

    64 clients in a closed loop, greedy. Each answer is one message (unary) or streamed. The times are until the first
    message of an answer, and until its last one.
    """
    unary = Load(kind="closed", num_clients=MANY_CLIENTS, seconds=context.visit_seconds)
    loads = {"_unary": unary, "_streamed": replace(unary, kind="stream")}
    measurements = measure([under(attendant_server(context), loads)], min(MAX_ROUNDS, context.num_rounds))
    columns: Columns = {
        "answers": lambda m: m.point.removeprefix("_"),
        "first token p50 ms": "first_p50",
        "first token p99 ms": "first_p99",
        "whole answer p50 ms": "p50",
        "whole answer p99 ms": "p99",
        "requests/s": "speed",
        "server CPU ms/request": "cpu_ms",
    }
    return part_of(measurements, columns, title="server", points=loads)


def overhead(context: Context) -> Part:
    """The cost of serving.

    Processor time of all the server's processes per sentence, compared with decoding in process with the mean number of
    rows of the server's steps; in turns, medians of the rounds. The last column is an empty grpc.aio service with the
    same requests, which is the lower limit of any server based on it.

    Bound, for unary calls: the requests per second that these processors could answer if the only costs were the calls
    of the graphs, with as many rows, the empty service and the load generator.
    """
    seconds = context.visit_seconds
    names = {
        "unary": "unary calls, 64 clients",
        "list": "lists of 256, one client",
        "bulk": "one bulk stream",
        "bulk_lists": f"one bulk stream, {MESSAGE_SIZE} requests in a message",
    }
    loads = {
        "_unary": Load(kind="closed", num_clients=MANY_CLIENTS, seconds=seconds),
        "_list": Load(kind="list", seconds=seconds),
        "_bulk": Load(kind="bulk", num_clients=BULK_IN_FLIGHT, seconds=seconds),
        "_bulk_lists": Load(kind="bulk-lists", num_clients=BULK_IN_FLIGHT, seconds=seconds),
    }
    short = {kind: replace(load, seconds=max(0.1, seconds / 4)) for kind, load in loads.items()}
    server = attendant_server(context)
    (rows_of,) = measure([under(server, loads)], num_rounds=1)
    num_rows = {kind: max(1, round(rows_of.median(f"step_rows{kind}"))) for kind in loads}
    jobs = {kind: context.job(batch_size=number) for kind, number in num_rows.items()}
    systems = [
        under(server, loads),
        own_decoder(context, "int8", num_workers=NUM_WORKERS).system(jobs, seconds),
        under(empty_service(server.requests), short),
        under(
            attendant_server(context, requests=requests_of(real_work(context.workload))), {"_unary": loads["_unary"]}
        ),
        engine_system(context, "int8", "greedy", num_rows=num_rows["_unary"]),
        engine_system(context, "int8", "greedy", num_rows=num_rows["_unary"], work=real_work),
    ]
    *compared, real_served, equal, real = measure(systems, context.num_rounds)
    columns = ["", "sentences/s", "rows per step", "server CPU ms", "in process CPU ms", "difference ms"]
    part = Part(columns=[*columns, "empty service CPU ms"])
    for kind, name in names.items():
        served, inside, empty = (m.at(f"_{kind}") for m in compared)
        pairs = zip(served.samples["cpu_ms"], inside.samples["cpu_ms"], strict=True)
        difference = statistics.median(ours - other for ours, other in pairs)
        speed, cpu, least = served.median("speed"), served.median("cpu_ms"), empty.median("cpu_ms")
        part.rows.append([name, speed, str(num_rows[f"_{kind}"]), cpu, inside.median("cpu_ms"), difference, least])
        values = {"overhead_ms": difference, "cpu_ms": cpu, "speed": speed, "empty_ms": least}
        part.figures.update({f"{kind}_{figure}": value for figure, value in values.items()})
    part.figures["real_speed"] = real_served.median("speed_unary")
    for kind, graphs, served in (("unary", equal, compared[0]), ("real", real, real_served)):
        cpu = graphs.median("graphs_ms") + part.figures["unary_empty_ms"] + served.median("generator_ms_unary")
        part.figures[f"{kind}_bound_speed"] = 1e3 * available_cpus() / cpu
    return part


def idle_latency(context: Context) -> Part:
    """One request on an idle server.

    Median latency of a unary call, compared with the bare graphs of the same work on an engine's threads, and with the
    same call to an empty grpc.aio service.
    """
    part = Part(columns=["server", "served ms", "bare graphs ms", "ratio", "empty service ms"])
    load = Load(kind="closed", num_clients=1, seconds=context.visit_seconds / 2)
    job = context.job(NUM_ALONE, batch_size=1)
    for num_workers, num_threads in ((NUM_WORKERS, 1), (1, 1), (1, 2)):
        server = attendant_server(context, num_workers=num_workers, num_threads=num_workers * num_threads)
        bare = own_decoder(context, "int8", num_threads=num_threads, bare=True)
        service = empty_service(server.requests)
        systems = [under(server, {"": load}), bare.system({"": job}, load.seconds), under(service, {"": load})]
        served, graphs, empty = measure(systems, context.num_rounds)
        served_ms, bare_ms, empty_ms = served.median("p50"), graphs.median("ms"), empty.median("p50")
        layout = f"--workers {num_workers} --threads {num_workers * num_threads}"
        part.rows.append([layout, served_ms, bare_ms, served_ms / bare_ms, empty_ms])
        values = {"served_ms": served_ms, "bare_ms": bare_ms, "empty_ms": empty_ms, "bound_ms": bare_ms + empty_ms}
        part.figures.update(part.figures or values)  # the first layout's
    return part


PHASES = {
    "step": "steps: the graph",
    "search": "steps: search",
    "select": "steps: rows that leave",
    "encode": "others are encoded meanwhile",
    "admit": "admission",
}
"""The engine's work while a request is decoded, by the names of attendant_step_seconds."""


def request_time(context: Context) -> Part:
    """The time of a request.

    Mean times of a unary call in a closed loop, by the server's metrics. Outside: the client's time beyond
    attendant_request_seconds. The server's process: the part of that metric beyond the engine's parts, including the
    time for which a worker holds an answer back. A running request waits for all the work of its engine, so its time is
    divided in the proportions of the engine's whole time.
    """
    loads = {
        "1 client": (equal_work, 1),
        f"{MANY_CLIENTS} clients": (equal_work, MANY_CLIENTS),
        f"{MANY_CLIENTS} clients, real lengths": (real_work, MANY_CLIENTS),
    }
    parts_of: dict[str, dict[str, float]] = {}
    for name, (work, num_clients) in loads.items():
        requests = requests_of(work(context.workload))
        with running(attendant_server(context, requests=requests)) as server:
            load = Load(kind="closed", num_clients=num_clients, seconds=2 * context.visit_seconds)
            server.load(load)
            figures, growth = server.watched(load)
            parts_of[name] = request_parts(1e3 * num_clients / figures["speed"], growth)
    totals = {name: sum(parts.values()) for name, parts in parts_of.items()}
    names = list(next(iter(parts_of.values())))
    rows: list[list[Cell]] = [[part, *(parts[part] for parts in parts_of.values())] for part in names]
    picture = Picture(
        file="request-time.svg",
        title="Where a request's time goes",
        x_label="% of its latency",
        bars=[f"{name}: {total:,.0f} ms" for name, total in totals.items()],
        sections={part: [100 * parts[part] / totals[name] for name, parts in parts_of.items()] for part in names},
    )
    return Part(
        columns=["ms per request", *parts_of],
        rows=[*rows, ["all", *totals.values()]],
        figures={f"{name}, {part}": value for name, parts in parts_of.items() for part, value in parts.items()},
        pictures=[picture],
    )


def request_parts(latency: float, growth: Mapping[str, float]) -> dict[str, float]:
    """Divides a mean latency in ms into its parts, by the growth of the metrics under load."""
    request, queue, encode, decode = (
        1e3 * mean_of(f"attendant_{name}_seconds", growth) for name in ("request", "queue", "encode", "decode")
    )
    seconds = {phase: growth[f"attendant_step_seconds_sum{{{phase}}}"] for phase in PHASES}
    in_engine = {name: (encode + decode) * seconds[phase] / sum(seconds.values()) for phase, name in PHASES.items()}
    in_engine[PHASES["encode"]] -= encode
    return {
        "outside: gRPC, the client": max(0.0, latency - request),
        "the server's process": request - queue - encode - decode,
        "on the way to the engine, and waiting": queue,
        "its encoding": encode,
        **{name: max(0.0, milliseconds) for name, milliseconds in in_engine.items()},
    }


def priority(context: Context) -> Part:
    """Interactive requests alongside bulk work.

    10 unary calls per second, at random moments, alongside one bulk stream with 2,048 requests in flight.
    """
    seconds, lead_seconds = 12 * context.visit_seconds, 0.5
    bulk = Load(kind="bulk", num_clients=BULK_IN_FLIGHT, seconds=seconds + 2 * lead_seconds)
    server = attendant_server(context)
    with running(server) as run, load_generator(run.addresses["serving"], server.requests) as other:
        interactive = run.visit(Load(kind="open", rate=10.0, seconds=seconds))

        def loaded(number: int) -> Samples:
            other.ask(asdict(bulk))
            time.sleep(lead_seconds)
            samples, results = interactive(number), Answered(**other.answer())
            return {**samples, "bulk_speed": len(results.latencies) / results.seconds}

        visits = {"_idle": interactive, "_loaded": loaded}
        system = System(key="attendant", name="interactive requests", start=lambda: iter([visits]))
        (measurement,) = measure([system], min(MAX_ROUNDS, context.num_rounds))
    speed = measurement.median("bulk_speed_loaded")
    names = {"idle": "nothing else", "loaded": f"bulk work, {speed:,.0f} sentences/s"}
    figures = {f"{key}_{p}_ms": measurement.median(f"{p}_{key}") for key in names for p in ("p50", "p99")}
    rows: list[list[Cell]] = [[name, figures[f"{key}_p50_ms"], figures[f"{key}_p99_ms"]] for key, name in names.items()]
    return Part(columns=["alongside", "p50 ms", "p99 ms"], rows=rows, figures=figures | {"bulk_speed": speed})


def idle(context: Context) -> Part:
    """Idle.

    10 s after the last request; all processes together.
    """
    part = Part(columns=["server", "share of a core", "resident MiB"])
    for num_workers in (2, 1):
        with running(attendant_server(context, num_workers=num_workers)) as server:
            server.load(Load(kind="closed", num_clients=8, seconds=context.visit_seconds))
            began, cpu = time.monotonic(), server.process.cpu_seconds()
            time.sleep(1.0 if context.quick else 10.0)
            share = (server.process.cpu_seconds() - cpu) / (time.monotonic() - began)
            mebibytes = resident_bytes(tree(server.process.pid)) / 2**20
        part.rows.append([f"--workers {num_workers}", f"{100 * share:.2f} %", mebibytes])
        part.figures.update({f"idle_share_{num_workers}": share, f"resident_mib_{num_workers}": mebibytes})
    part.figures["idle_share"] = max(part.figures["idle_share_1"], part.figures["idle_share_2"])
    return part


NUM_SAMPLES = 40
NUM_WARM_UPS = 4


def memory(context: Context) -> Part:
    """Resident memory over requests of random shapes.

    1 to 64 source positions, beams of 1 to 8, 1 to 12 tokens; half unary calls, half bulk work. The model is small,
    because leaks do not depend on its size and are easier to see. Warm after 10 %. Empty service: grpc.aio with the
    same requests, which it discards.
    """
    generator, requests = random.Random(9), []
    for seed in range(NUM_REQUESTS):
        job = Job(1, num_tokens=generator.randint(2, 64), vocabulary_size=QUICK.vocabulary_size, seed=seed)
        beam_size = generator.randint(1, MAX_BEAM_SIZE)
        requests.append(generate_request(sentences(job)[0], generator.randint(2, 12), beam_size))
    small = replace(context, workload=QUICK)
    part = Part(columns=["", "requests", "MiB after the warm-up", "MiB at the end", "growth MiB", "growth"])
    for server in (attendant_server(small, requests=requests, num_workers=1, name="server"), empty_service(requests)):
        course = list(_memory_course(server, context))
        sizes = [mebibytes for _, mebibytes in course]
        # Medians of some samples: the allocator's memory goes up and down.
        first, last = statistics.median(sizes[NUM_WARM_UPS - 1 : NUM_WARM_UPS + 2]), statistics.median(sizes[-3:])
        growth, num_requests = last / first - 1, course[-1][0]
        changes = f"{last - first:.1f}", f"{100 * growth:.2f} %"
        part.rows.append([server.name, f"{num_requests:,.0f}", first, last, *changes])
        if server.name == "server":
            part.figures.update(growth=growth, num_requests=num_requests)
    return part


def _memory_course(server: Server, context: Context) -> Iterator[tuple[float, float]]:
    """Yields (requests answered, MiB resident): unary calls and bulk work in turns."""
    each = max(1, (2000 if context.quick else context.options.requests) // NUM_SAMPLES // 2)
    # With the allocator's defaults: if it kept all freed memory, it would show the highest need that ever was.
    with running(replace(server, keeps_memory=False)) as run:
        for number in range(1, NUM_SAMPLES + 1):
            for kind in ("closed", "bulk"):
                run.load(Load(kind=kind, num_clients=128, num_requests=each, seconds=1e6))
            yield 2.0 * number * each, resident_bytes(tree(run.process.pid)) / 2**20
