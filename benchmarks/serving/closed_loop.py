"""Closed loops: so many clients, each of which asks again as soon as it was answered."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from attendant.server.bench.load import Load
from benchmarks.command import Context
from benchmarks.harness.measurement import Columns, System, Visits, curves, measure, part_of, remarks
from benchmarks.harness.results import Part, Picture
from benchmarks.serving.servers import Server, attendant_server, running

CLIENTS = (1, 8, 32, 64, 256)
MAX_ROUNDS = 3
WARM_UP_SECONDS = 1.0


def served(context: Context) -> Part:
    """Served, closed loop.

    Each client asks again when it was answered; the load generator shares the machine. Medians over the rounds. Server
    CPU is that of all the server's processes.
    """
    servers = [
        attendant_server(context, key="two_workers"),
        attendant_server(context, key="one_worker", num_workers=1, name="Attendant, 1 worker"),
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
    systems = [_system(server, loads) for server in servers]
    found = measure(systems, num_rounds=min(MAX_ROUNDS, context.num_rounds), say=context.say)
    speeds = curves(found, "speed", points)
    picture = Picture(file=file, title="Closed loop", x_label="clients", y_label="requests/s", series=speeds)
    columns: Columns = {
        "clients": lambda one: one.point.removeprefix("_"),
        "requests/s": "speed",
        "p50 ms": "p50",
        "p99 ms": "p99",
        "server CPU ms/request": "cpu",
        "remarks": remarks,
    }
    best_by = f"speed_{clients[-1]}"
    return part_of(found, columns, what="server", points=points, best_by=best_by, pictures=[picture])


def _system(server: Server, loads: dict[str, Load]) -> System:
    def start() -> Iterator[Visits]:
        with running(server) as run:
            for load in loads.values():
                run.load(replace(load, seconds=min(WARM_UP_SECONDS, load.seconds)))
            yield {point: run.visit(load) for point, load in loads.items()}

    return System(key=server.key, name=server.name, start=start, about=server.about)
