"""Servers under load: clients who ask again as soon as they were answered, and arrivals that don't wait for answers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from attendant.server.bench.load import Load
from benchmarks.command import Context
from benchmarks.harness.measurement import Columns, Measurement, System, curves, measure, part_of, remarks
from benchmarks.harness.results import Part, Picture
from benchmarks.serving.payloads import generate_requests, real_work
from benchmarks.serving.servers import Server, attendant_server, under

CLIENTS = (1, 8, 32, 64, 256)
STREAMING_CLIENTS = 64
MAX_ROUNDS = 3

FRACTIONS = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Of the capacity."""

YARDSTICK_FRACTION = 0.8
CAPACITY_CLIENTS = 192
P99_MS = 250.0
"""The rate up to which a server's p99 is no higher is one of its figures."""

NUM_RUNS = 2
Curve = Sequence[tuple[float, float]]
"""(requests/s, p99 in ms), by rate."""


def served(context: Context) -> Part:
    """Served, closed loop.

    Each client asks again when it was answered; the load generator shares the machine. Medians over the rounds. Server
    CPU is that of all the server's processes.
    """
    servers = [
        attendant_server(context, key="two_workers"),
        attendant_server(context, key="one_worker", num_workers=1, name="Attendant, 1 worker"),
        attendant_server(context, key="one_thread", num_workers=1, num_threads=1, name="Attendant, 1 thread"),
        attendant_server(context, key="fp32", precision="fp32", name="Attendant, fp32"),
    ]
    clients = CLIENTS[:2] if context.quick else CLIENTS
    return closed_loops(context, servers, clients, seconds=context.visit_seconds, file="served.svg")


def closed_loops(
    context: Context, servers: Sequence[Server], clients: Sequence[int], *, seconds: float, file: str
) -> Part:
    """All servers run; each is loaded in turn, in every round, by every number of clients.

    A row per server and number of clients; the figures of servers of one key are those of the fastest.
    """
    points = {f"_{num}": float(num) for num in clients}
    loads = {f"_{num}": Load(kind="closed", num_clients=num, seconds=seconds) for num in clients}
    systems = [under(server, loads) for server in servers]
    found = measure(systems, min(MAX_ROUNDS, context.num_rounds))
    speeds = curves(found, "speed", points)
    picture = Picture(file=file, title="Closed loop", x_label="clients", y_label="requests/s", series=speeds)
    columns: Columns = {
        "clients": lambda one: one.point.removeprefix("_"),
        "requests/s": "speed",
        "p50 ms": "p50",
        "p99 ms": "p99",
        "server CPU ms/request": "cpu_ms",
        "remarks": remarks,
    }
    best_by = f"speed_{clients[-1]}"
    return part_of(found, columns, what="server", points=points, best_by=best_by, pictures=[picture])


def first_token(context: Context) -> Part:
    """Time to the first token.

    64 clients in a closed loop, greedy: each answer in one message, or streamed. Until the first message of an answer,
    and until its last one.
    """
    unary = Load(kind="closed", num_clients=STREAMING_CLIENTS, seconds=context.visit_seconds)
    loads = {"_unary": unary, "_streamed": replace(unary, kind="stream")}
    system = under(attendant_server(context), loads)
    found = measure([system], min(MAX_ROUNDS, context.num_rounds))
    columns: Columns = {
        "answers": lambda one: one.point.removeprefix("_"),
        "first token p50 ms": "first_p50",
        "first token p99 ms": "first_p99",
        "whole answer p50 ms": "p50",
        "whole answer p99 ms": "p99",
        "requests/s": "speed",
        "server CPU ms/request": "cpu_ms",
    }
    return part_of(found, columns, what="server", points=loads)


def open_loop(context: Context) -> Part:
    """Poisson load, lengths of real sentences.

    One worker, one thread, int8, greedy; 5 to 80 source positions and steps. Latency counts from the planned moment of
    each arrival. Per request: the same server, which lets nobody join a batch that runs. Capacity: what 192 clients in
    a closed loop get.
    """
    requests = generate_requests(real_work(context))
    server = partial(attendant_server, context, requests=requests, num_workers=1, num_threads=1)
    servers = [
        server(key="step_level", name="batching per step"),
        server(key="request_level", name="batching per request", module="benchmarks.serving.request_level"),
    ]
    return open_loops(context, servers, file="open-loop.svg")


def open_loops(context: Context, servers: Sequence[Server], *, file: str) -> Part:
    """All servers run; each gets Poisson arrivals at the same rates, as far as it can bear them."""
    seconds = 6 * context.visit_seconds
    closed = Load(kind="closed", num_clients=CAPACITY_CLIENTS, seconds=seconds / 2)
    counted = measure([under(server, {"": closed}, [closed]) for server in servers], num_rounds=1)
    capacities = {one.system.key: one.median("speed") for one in counted if one.samples}
    rates = sorted({round(part * capacity, 1) for capacity in capacities.values() for part in FRACTIONS})
    points = {f"_{rate}": rate for rate in rates}

    def arrivals(server: Server) -> System:
        # Beyond its capacity a queue only grows.
        highest = max(FRACTIONS) * capacities[server.key] + 0.1
        load = Load(kind="open", seconds=seconds)
        loads = {point: replace(load, rate=rate) for point, rate in points.items() if rate <= highest}
        return under(server, loads, [closed])

    servers = [server for server in servers if server.key in capacities]
    found = measure([arrivals(server) for server in servers], NUM_RUNS)

    def share(one: Measurement) -> str:
        return f"{100 * points[one.point] / capacities[one.system.key]:.0f} %"

    def waste(one: Measurement) -> str:
        return f"{100 * (1 - one.median('efficiency')):.0f} %" if "efficiency" in one.samples else ""

    columns: Columns = {
        "requests/s": lambda one: points[one.point],
        "of its capacity": share,
        "p50 ms": "p50",
        "p99 ms": "p99",
        "rows per step": "step_rows",
        "padding waste": waste,
    }
    lines = curves(found, "p99", points)
    picture = Picture(
        file=file, title="p99 against load", x_label="requests/s", y_label="p99, ms", logarithmic=True, series=lines
    )
    note = "Capacity: " + ", ".join(f"{one.name} {capacities[one.key]:,.0f} requests/s" for one in servers) + "."
    shown = [*(one for one in counted if one.problem), *found]
    part = part_of(shown, columns, what="server", points=points, pictures=[picture], note=note)
    return replace(part, figures=_figures({server.key: lines.get(server.name, []) for server in servers}, capacities))


def _figures(curves: Mapping[str, Curve], capacities: Mapping[str, float]) -> dict[str, float]:
    """`<key>_capacity`; `<key>_rate`, up to which p99 stays below P99_MS; at 80 % of the slowest server's capacity,
    which all can bear, `<key>_p99_80`; and `<key>_rate_at_p99`, up to which rate a server's p99 is no higher than the
    slowest one's there.
    """
    found = {f"{key}_capacity": capacity for key, capacity in capacities.items()}
    found |= {f"{key}_rate": rate for key, curve in curves.items() if (rate := rate_at(curve, P99_MS)) is not None}
    slowest = min(capacities, key=lambda key: capacities[key])
    rate = round(YARDSTICK_FRACTION * capacities[slowest], 1)
    if all(rate in dict(curve) for curve in curves.values()):
        latencies = {key: dict(curve)[rate] for key, curve in curves.items()}
        found |= {f"{key}_p99_80": latency for key, latency in latencies.items()}
        at_p99 = {key: rate_at(curve, latencies[slowest]) for key, curve in curves.items()}
        found |= {f"{key}_rate_at_p99": equal for key, equal in at_p99.items() if equal is not None}
    return found


def rate_at(points: Sequence[tuple[float, float]], latency: float) -> float | None:
    """The highest load at which a latency is kept, between two measured loads by a straight line.

    Whatever else the machine did during one visit does not decide it: latencies that fall where the load rises are
    averaged first (see `rising`).

    Args:
        points: (load, latency), by load.

    Returns:
        None where not even the lowest load keeps it; the highest load where all do: it is a lower bound then.
    """
    found = None
    before_load = before = 0.0
    for (load, _), measured in zip(points, rising([measured for _, measured in points]), strict=True):
        if measured > latency:
            if found is None:
                return None
            return before_load + (load - before_load) * (latency - before) / (measured - before)
        found = before_load = load
        before = measured
    return found


def rising(values: Sequence[float]) -> list[float]:
    """The nondecreasing sequence nearest to these by least squares (pool adjacent violators, Ayer et al. 1955)."""
    # Means of neighbours, each with the number of them.
    pools: list[tuple[float, int]] = []
    for value in values:
        mean, number = value, 1
        while pools and pools[-1][0] > mean:
            last_mean, last_number = pools.pop()
            mean = (mean * number + last_mean * last_number) / (number + last_number)
            number += last_number
        pools.append((mean, number))
    return [mean for mean, number in pools for _ in range(number)]
