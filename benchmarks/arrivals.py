"""Measures servers under random arrivals."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from attendant.server.bench.load import Load
from benchmarks.harness import Columns, Measurement, System, measure, part_of
from benchmarks.results import Part
from benchmarks.servers import Server, attendant_server, requests_of, under
from benchmarks.workload import Context, real_work

FRACTIONS = (0.3, 0.5, 0.65, 0.8, 0.95)
"""Rates of random arrivals, as fractions of the capacity."""

LEAST_STEP = 1.07
"""Rates that are nearer to another one than by this factor are left out."""

NUM_ROUNDS = 4
NUM_ARRIVALS = 2000
"""Arrivals of a visit: 20 of them take longer than the p99."""

YARDSTICK_FRACTION = 0.8
CAPACITY_CLIENTS = 192
P99_MS = 250.0
"""The highest rate with at most this p99 is one of a server's figures."""


def open_loop(context: Context) -> Part:
    """Poisson load, lengths of real sentences.

    One worker, one thread, int8, greedy; 5 to 80 source positions and steps. Latency counts from the planned moment of
    each arrival. Per request: the same server, in which no request joins a running batch. Capacity: requests per
    second of 192 clients in a closed loop.
    """
    requests = requests_of(real_work(context.workload))
    server = partial(attendant_server, context, requests=requests, num_workers=1, num_threads=1)
    servers = [
        server(key="step_level", name="batching per step"),
        server(key="request_level", name="batching per request", per_request=True),
    ]
    return open_loops(context, servers)


def open_loops(context: Context, servers: Sequence[Server]) -> Part:
    """Loads all servers by Poisson arrivals at the same rates, each up to its capacity.

    The figures are `<key>_capacity`; `<key>_rate`, up to which p99 stays below P99_MS; at 80 % of the slowest server's
    capacity `<key>_p99_80`; `<key>_rate_at_p99`, up to which a server's p99 is no higher than the slowest one's; and
    `<key>_p99_ratio`, the greatest ratio of its p99 to the slowest one's at the same rate.
    """
    num_arrivals = NUM_ARRIVALS // 50 if context.quick else NUM_ARRIVALS
    closed = Load(kind="closed", num_clients=CAPACITY_CLIENTS, seconds=3 * context.visit_seconds)
    counted = measure([under(server, {"": closed}, [closed]) for server in servers], num_rounds=1)
    capacities = {m.system.key: m.median("speed") for m in counted if m.samples}
    rates = _rates(capacities.values())
    points = {f"_{rate}": rate for rate in rates}

    def arrivals(server: Server) -> System:
        # Above the capacity a queue only grows.
        highest = max(FRACTIONS) * capacities[server.key] + 0.1
        loads = {
            point: Load(kind="open", seconds=num_arrivals / rate, rate=rate)
            for point, rate in points.items()
            if rate <= highest
        }
        return under(server, loads, [closed])

    servers = [server for server in servers if server.key in capacities]
    measurements = measure([arrivals(server) for server in servers], NUM_ROUNDS)

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
    p99s = {
        m.system.key: {rate: m.median("p99" + end) for end, rate in points.items() if "p99" + end in m.samples}
        for m in measurements
    }
    return replace(part, figures=_figures(capacities, p99s))


def _rates(capacities: Iterable[float]) -> list[float]:
    """Returns the FRACTIONS of all capacities, each slower server's first; none is close to another."""
    rates: list[float] = []
    for capacity in sorted(capacities):
        new = [round(part * capacity, 1) for part in FRACTIONS]
        rates += [rate for rate in new if all(max(rate / other, other / rate) > LEAST_STEP for other in rates)]
    return sorted(rates)


def _figures(capacities: Mapping[str, float], p99s: Mapping[str, Mapping[float, float]]) -> dict[str, float]:
    """Returns the figures that `open_loops` lists.

    Args:
        capacities: by the server's key.
        p99s: in ms, by the server's key and the rate, which ascends.
    """
    slowest = min(capacities, key=lambda key: capacities[key])
    common = round(YARDSTICK_FRACTION * capacities[slowest], 1)
    at_common = {key: by_rate[common] for key, by_rate in p99s.items() if common in by_rate}
    values: dict[str, float | None] = {f"{key}_capacity": capacity for key, capacity in capacities.items()}
    for key, by_rate in p99s.items():
        line, shared = list(by_rate.items()), by_rate.keys() & p99s[slowest].keys()
        values[f"{key}_rate"] = rate_at(line, P99_MS)
        values[f"{key}_p99_ratio"] = max([by_rate[rate] / p99s[slowest][rate] for rate in shared], default=None)
        if len(at_common) == len(p99s):
            values[f"{key}_p99_80"] = at_common[key]
            values[f"{key}_rate_at_p99"] = rate_at(line, at_common[slowest])
    return {name: value for name, value in values.items() if value is not None}


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
