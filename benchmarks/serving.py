"""Measures servers under load: closed loops, random arrivals, overhead, memory, idling."""

import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial

from attendant.runtime.process import available_cpus
from attendant.server.bench.load import MESSAGE_SIZE, Answered, Load
from benchmarks.decoding import NUM_ALONE, NUM_WORKERS, engine_system, own_decoder
from benchmarks.harness import Columns, Measurement, Samples, System, measure, part_of, resident_bytes, tree
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

FRACTIONS = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Rates of random arrivals, as fractions of the capacity."""

YARDSTICK_FRACTION = 0.8
CAPACITY_CLIENTS = 192
P99_MS = 250.0
"""The highest rate with at most this p99 is one of a server's figures."""


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

    64 clients in a closed loop, greedy: each answer in one message, or streamed. Until the first message of an answer,
    and until its last one.
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


def open_loop(context: Context) -> Part:
    """Poisson load, lengths of real sentences.

    One worker, one thread, int8, greedy; 5 to 80 source positions and steps. Latency counts from the planned moment of
    each arrival. Per request: the same server, in which no request joins a running batch. Capacity: requests per
    second of 192 clients in a closed loop.
    """
    server = partial(
        attendant_server, context, requests=requests_of(real_work(context.workload)), num_workers=1, num_threads=1
    )
    servers = [
        server(key="step_level", name="batching per step"),
        server(key="request_level", name="batching per request", per_request=True),
    ]
    return open_loops(context, servers)


def open_loops(context: Context, servers: Sequence[Server]) -> Part:
    """Loads all servers by Poisson arrivals at the same rates, each up to its capacity.

    The figures are `<key>_capacity`; `<key>_rate`, up to which p99 stays below P99_MS; at 80 % of the slowest server's
    capacity `<key>_p99_80`; and `<key>_rate_at_p99`, up to which a server's p99 is no higher than the slowest one's.
    """
    seconds = 6 * context.visit_seconds
    closed = Load(kind="closed", num_clients=CAPACITY_CLIENTS, seconds=seconds / 2)
    counted = measure([under(server, {"": closed}, [closed]) for server in servers], num_rounds=1)
    capacities = {m.system.key: m.median("speed") for m in counted if m.samples}
    rates = sorted({round(part * capacity, 1) for capacity in capacities.values() for part in FRACTIONS})
    points = {f"_{rate}": rate for rate in rates}

    def arrivals(server: Server) -> System:
        # Above the capacity a queue only grows.
        highest = max(FRACTIONS) * capacities[server.key] + 0.1
        load = Load(kind="open", seconds=seconds)
        loads = {point: replace(load, rate=rate) for point, rate in points.items() if rate <= highest}
        return under(server, loads, [closed])

    servers = [server for server in servers if server.key in capacities]
    measurements = measure([arrivals(server) for server in servers], num_rounds=2)

    def padding_waste(m: Measurement) -> str:
        return f"{100 * (1 - m.median('efficiency')):.0f} %" if "efficiency" in m.samples else ""

    columns: Columns = {
        "requests/s": lambda m: points[m.point],
        "of its capacity": lambda m: f"{100 * points[m.point] / capacities[m.system.key]:.0f} %",
        "p50 ms": "p50",
        "p99 ms": "p99",
        "rows per step": "step_rows",
        "padding waste": padding_waste,
    }
    note = "Capacity: " + ", ".join(f"{s.name} {capacities[s.key]:,.0f} requests/s" for s in servers) + "."
    failed = [m for m in counted if m.problem]
    part = part_of([*failed, *measurements], columns, title="server", points=points, note=note)
    by_key = {
        m.system.key: [(rate, m.median("p99" + end)) for end, rate in points.items() if "p99" + end in m.samples]
        for m in measurements
    }
    rates_at = {key: rate_at(line, P99_MS) for key, line in by_key.items()}
    values: dict[str, float | None] = {f"{key}_capacity": capacity for key, capacity in capacities.items()}
    values |= {f"{key}_rate": rate for key, rate in rates_at.items()}
    slowest = min(capacities, key=lambda key: capacities[key])
    common = round(YARDSTICK_FRACTION * capacities[slowest], 1)
    if all(common in dict(line) for line in by_key.values()):
        latencies = {key: dict(line)[common] for key, line in by_key.items()}
        values |= {f"{key}_p99_80": latency for key, latency in latencies.items()}
        values |= {f"{key}_rate_at_p99": rate_at(line, latencies[slowest]) for key, line in by_key.items()}
    return replace(part, figures={name: value for name, value in values.items() if value is not None})


def rate_at(points: Sequence[tuple[float, float]], latency: float) -> float | None:
    """Returns the highest load with at most this latency, between two measured loads on a straight line.

    Latencies that fall where the load rises are averaged first, so that one disturbed visit does not decide it: the
    nearest nondecreasing sequence by least squares (pool adjacent violators, Ayer et al. 1955).

    Args:
        points: (load, latency), by load.

    Returns:
        None if even the lowest load has a higher latency; the highest load, a lower bound, if none has.
    """
    pools: list[tuple[float, int]] = []  # means of neighbours, and the number of each
    for _, latency_here in points:
        mean, number = latency_here, 1
        while pools and pools[-1][0] > mean:
            last_mean, last_number = pools.pop()
            mean = (mean * number + last_mean * last_number) / (number + last_number)
            number += last_number
        pools.append((mean, number))
    rising = [mean for mean, number in pools for _ in range(number)]
    loads = [load for load, _ in points]
    if not rising or rising[0] > latency:
        return None
    last = max(index for index, value in enumerate(rising) if value <= latency)
    if last + 1 == len(rising):
        return loads[-1]
    share = (latency - rising[last]) / (rising[last + 1] - rising[last])
    return loads[last] + (loads[last + 1] - loads[last]) * share


def overhead(context: Context) -> Part:
    """The cost of serving.

    Processor time of all the server's processes per sentence, against decoding in process with as many rows at a time
    as the server's steps had on average; in turns, medians of the rounds. The last column: an empty grpc.aio service
    for the same requests. No server based on it takes less.

    Bound, of unary calls: how many requests per second these processors could answer if nothing cost processor time but
    the calls of the graphs, with as many rows, the empty service and the load generator.
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

    Median latency of a unary call, beside the bare graphs of the same work on an engine's threads, and beside the same
    call to an empty grpc.aio service.
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
    attendant_request_seconds. The server's process: the rest of that beyond the engine's parts, with the time for which
    a worker holds an answer. A running request waits for all the work of its engine, so this time is divided as the
    engine's whole time is.
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
    """Interactive requests beside bulk work.

    10 unary calls per second, at random moments; one bulk stream with 2,048 requests in flight.
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

    1 to 64 source positions, beams of 1 to 8, 1 to 12 tokens; half unary calls, half bulk work; a small model, because
    leaks do not depend on its sizes and are seen more easily. Warm after 10 %. Empty service: grpc.aio for the same
    requests when nothing is done with them.
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
