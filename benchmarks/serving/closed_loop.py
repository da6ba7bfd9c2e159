"""Closed loops: so many clients, each of which asks again as soon as it was answered."""

from collections.abc import Sequence
from dataclasses import replace

from attendant.server.bench.load import Load
from benchmarks.command import Context
from benchmarks.harness.measurement import Columns, curves, measure, part_of, remarks
from benchmarks.harness.results import Part, Picture
from benchmarks.serving.servers import Server, attendant_server, under

CLIENTS = (1, 8, 32, 64, 256)
STREAMING_CLIENTS = 64
MAX_ROUNDS = 3


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
    found = measure(systems, num_rounds=min(MAX_ROUNDS, context.num_rounds), say=context.say)
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
    found = measure([system], num_rounds=min(MAX_ROUNDS, context.num_rounds), say=context.say)
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
