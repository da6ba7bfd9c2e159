"""Closed loops: so many clients, each of which asks again as soon as it was answered."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from benchmarks.command import Context
from benchmarks.harness.measurement import System, Visits, figures, measure
from benchmarks.harness.results import Cell, Part, Picture
from benchmarks.serving.generator import Load
from benchmarks.serving.servers import Server, attendant_server, running

CLIENTS = (1, 8, 32, 64, 256)
MAX_ROUNDS = 3
WARM_UP_SECONDS = 1.0
COLUMNS = ["server", "clients", "requests/s", "p50 ms", "p99 ms", "server CPU ms/request", "remarks"]


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
    systems = [_system(server, clients, seconds) for server in servers]
    found = measure(systems, num_rounds=min(MAX_ROUNDS, context.num_rounds), say=context.say)
    rows: list[list[Cell]] = []
    speeds = {}
    for one in found:
        if one.problem is not None:
            rows.append([one.system.name, *[None] * 5, f"not measured: {one.problem}"])
            continue
        for num in clients:
            values = [one.median(f"{name}_{num}") for name in ("speed", "p50", "p99", "cpu")]
            rows.append([one.system.name, str(num), *values, one.system.about])
        speeds[one.system.name] = [(float(num), one.median(f"speed_{num}")) for num in clients]
    picture = Picture(file=file, title="Closed loop", x_label="clients", y_label="requests/s", series=speeds)
    best = figures(found, best_by=f"speed_{clients[-1]}")
    return Part(columns=COLUMNS, rows=rows, figures=best, pictures=[picture])


def _system(server: Server, clients: Sequence[int], seconds: float) -> System:
    def start() -> Iterator[Visits]:
        with running(server) as run:
            loads = {f"_{num}": Load(kind="closed", num_clients=num, seconds=seconds) for num in clients}
            for load in loads.values():
                run.load(replace(load, seconds=min(WARM_UP_SECONDS, seconds)))
            yield {ending: run.visit(load) for ending, load in loads.items()}

    return System(key=server.key, name=server.name, start=start, about=server.about)
