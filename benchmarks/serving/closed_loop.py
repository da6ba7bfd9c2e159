"""Closed loops: so many clients, each of which asks again as soon as it was answered."""

import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from benchmarks.command import Context
from benchmarks.results import Cell, Part, Picture, Series
from benchmarks.serving.attendant_server import attendant_server
from benchmarks.serving.generator import Load
from benchmarks.serving.load import LoadGenerator, Report
from benchmarks.serving.served import Served, ServedSystem, ServerFailed

CLIENTS = (1, 8, 32, 64, 256)
WARM_UP_SECONDS = 1.0
MS = 1e3

Say = Callable[[str], None]


@dataclass(slots=True)
class ClosedLoop:
    """A server under closed loops.

    Attributes:
        reports: number of clients -> a report per round.
        problem: why there are none.
    """

    system: ServedSystem
    reports: dict[int, list[Report]] = field(default_factory=dict)
    problem: str | None = None

    def median(self, num_clients: int, of: Callable[[Report], float]) -> float:
        return statistics.median(of(report) for report in self.reports[num_clients])


def closed_loops(
    systems: Sequence[ServedSystem], clients: Sequence[int], *, num_rounds: int, seconds: float, say: Say
) -> list[ClosedLoop]:
    """All servers run; each is loaded in turn, in every round, by every number of clients."""
    loops = [ClosedLoop(system) for system in systems]
    with ExitStack() as exits:
        running: list[tuple[ClosedLoop, LoadGenerator]] = []
        for loop in loops:
            try:
                generator = exits.enter_context(LoadGenerator(exits.enter_context(Served(loop.system))))
                for num_clients in clients:
                    generator.run(Load(kind="closed", num_clients=num_clients, seconds=min(WARM_UP_SECONDS, seconds)))
            except ServerFailed as error:
                loop.problem = str(error)
                say(f"{loop.system.name}: {error}")
            else:
                running.append((loop, generator))
        for number in range(1, num_rounds + 1):
            for num_clients in clients:
                for loop, generator in running:
                    _visit(loop, generator, num_clients, seconds)
            said = [
                f"{loop.system.name} " + " ".join(f"{n}: {loop.reports[n][-1].speed:,.0f}" for n in clients)
                for loop, _ in running
                if loop.problem is None
            ]
            say(f"round {number} of {num_rounds}, requests/s by clients: {'; '.join(said)}")
    return loops


def _visit(loop: ClosedLoop, generator: LoadGenerator, num_clients: int, seconds: float) -> None:
    if loop.problem is not None:
        return
    try:
        report = generator.run(Load(kind="closed", num_clients=num_clients, seconds=seconds))
    except ServerFailed as error:
        loop.problem = str(error)
        loop.reports.clear()
    else:
        loop.reports.setdefault(num_clients, []).append(report)


def closed_loop_part(loops: Sequence[tuple[str, ClosedLoop]], clients: Sequence[int], *, title: str) -> Part:
    """A row per server and number of clients.

    Args:
        loops: each with the key of its figures.
    """
    rows: list[list[Cell]] = []
    figures: dict[str, float] = {}
    series = []
    for key, loop in loops:
        if loop.problem is not None:
            rows.append([loop.system.name, *[None] * 5, f"not measured: {loop.problem}"])
            continue
        for num_clients in clients:
            speed = loop.median(num_clients, lambda report: report.speed)
            p50, p99 = (MS * loop.median(num_clients, lambda report, p=p: report.latency(p)) for p in (50, 99))  # type: ignore[misc]
            cpu = MS * loop.median(num_clients, lambda report: report.cpu_per_answer)
            rows.append([loop.system.name, str(num_clients), speed, p50, p99, cpu, loop.system.about])
            values = {"speed": speed, "p50": p50, "p99": p99, "cpu": cpu}
            figures |= {f"{key}_{name}_{num_clients}": value for name, value in values.items()}
        speeds = [figures[f"{key}_speed_{num_clients}"] for num_clients in clients]
        series.append(Series(name=loop.system.name, xs=[float(n) for n in clients], ys=speeds))
    return Part(
        title=title,
        about=(
            "Each client asks again when it was answered; the load generator shares the machine. Medians over the "
            "rounds. Server CPU is that of all the server's processes."
        ),
        columns=["server", "clients", "requests/s", "p50 ms", "p99 ms", "server CPU ms/request", "remarks"],
        rows=rows,
        figures=figures,
        pictures=[
            Picture(
                file=f"{title.split(',', maxsplit=1)[0].lower().replace(' ', '-')}.svg",
                title=title,
                x_label="clients",
                y_label="requests/s",
                series=series,
            )
        ],
    )


def served(context: Context) -> Part:
    """Ours at its best settings."""
    clients = CLIENTS[:2] if context.quick else CLIENTS
    systems = [
        attendant_server(context),
        attendant_server(context, num_workers=1, name="Attendant, 1 worker"),
        attendant_server(context, precision="fp32", name="Attendant, fp32"),
    ]
    loops = closed_loops(
        systems, clients, num_rounds=min(3, context.num_rounds), seconds=context.visit_seconds, say=context.say
    )
    keys = ("two_workers", "one_worker", "fp32")
    return closed_loop_part(list(zip(keys, loops, strict=True)), clients, title="Served, closed loop")
