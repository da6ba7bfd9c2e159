"""Where the time of a request goes, from the client's call to its answer."""

from collections.abc import Mapping

from attendant.server.bench.load import Load
from benchmarks.command import Context
from benchmarks.harness.results import Cell, Part, Picture
from benchmarks.serving.payloads import equal_work, generate_requests, real_work
from benchmarks.serving.servers import attendant_server, mean_of, running

PHASES = {
    "step": "steps: the graph",
    "search": "steps: search",
    "select": "steps: rows that leave",
    "encode": "others are encoded meanwhile",
    "admit": "admission",
}
"""What an engine does while a request is decoded, by the names of attendant_step_seconds."""


def request_time(context: Context) -> Part:
    """Where a request's time goes.

    Mean times of a unary call in a closed loop, as the server's metrics have them. Outside: what the client measures
    above attendant_request_seconds. The server's process: what that is above the engine's parts. A request that has
    rows waits for all that its engine does, so that time is parted as the engine's whole time is.
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
