"""Open loop: Poisson arrivals that don't wait for answers, with the lengths of real sentences."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from attendant.server.bench.load import Load
from benchmarks.command import Context
from benchmarks.harness.measurement import Columns, Measurement, System, curves, measure, part_of
from benchmarks.harness.results import Part, Picture
from benchmarks.serving.payloads import generate_requests, real_work
from benchmarks.serving.servers import Server, attendant_server, under

FRACTIONS = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Of the capacity."""

YARDSTICK_FRACTION = 0.8
CAPACITY_CLIENTS = 192
P99_MS = 250.0
"""The rate up to which a server's p99 is no higher is one of its figures."""

NUM_RUNS = 2
Curve = Sequence[tuple[float, float]]
"""(requests/s, p99 in ms), by rate."""


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
    counted = measure([under(server, {"": closed}) for server in servers], num_rounds=1, say=context.say)
    capacities = {one.system.key: one.median("speed") for one in counted if one.samples}
    rates = sorted({round(part * capacity, 1) for capacity in capacities.values() for part in FRACTIONS})
    points = {f"_{rate}": rate for rate in rates}

    def arrivals(server: Server) -> System:
        # Beyond its capacity a queue only grows.
        highest = max(FRACTIONS) * capacities[server.key] + 0.1
        load = Load(kind="open", seconds=seconds)
        return under(server, {point: replace(load, rate=rate) for point, rate in points.items() if rate <= highest})

    servers = [server for server in servers if server.key in capacities]
    found = measure([arrivals(server) for server in servers], num_rounds=NUM_RUNS, say=context.say)

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

    Args:
        points: (load, latency), by load.

    Returns:
        None where not even the lowest load keeps it; the highest load where all do: it is a lower bound then.
    """
    found = None
    for index, (load, measured) in enumerate(points):
        if measured <= latency:
            found = load
        elif found is not None:
            before_load, before = points[index - 1]
            return before_load + (load - before_load) * (latency - before) / (measured - before)
    return found
