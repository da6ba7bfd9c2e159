"""Open loop: Poisson arrivals that don't wait for answers, with the lengths of real sentences."""

import json
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.command import Context
from benchmarks.results import Cell, Part, Picture, Series
from benchmarks.serving.attendant_server import attendant_server, payloads_of_lengths
from benchmarks.serving.generator import Load
from benchmarks.serving.load import LoadGenerator, Report
from benchmarks.serving.served import Served, mean_between

LENGTHS = Path(__file__).parent / "lengths.json"
"""Words and punctuation marks of 1,000 pairs of sentences of 5 to 80, English and French: how long they are, nothing
else. Drawn at random from the test part of what recipes/translate-debdocs-en-fr.toml fetches, by sentences."""

FRACTIONS = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Of the capacity."""

YARDSTICK_FRACTION = 0.8
CAPACITY_CLIENTS = 192
NUM_RUNS = 2
MS = 1e3


@dataclass(slots=True)
class Curve:
    """A server's latency against load.

    Attributes:
        reports: rate of arrivals -> reports.
    """

    name: str
    key: str
    capacity: float = 0.0
    reports: dict[float, list[Report]] = field(default_factory=dict)
    means: dict[float, list[float]] = field(default_factory=dict)

    def latency(self, rate: float, percent: float) -> float:
        """In ms; the median of the runs."""
        return MS * statistics.median(report.latency(percent) for report in self.reports[rate])

    def points(self) -> list[tuple[float, float]]:
        """(rate, p99 in ms), by rate."""
        return [(rate, self.latency(rate, 99)) for rate in sorted(self.reports)]


def open_loop(context: Context) -> Part:
    """Batching per step against batching per request: the same engine, one worker, the same arrivals."""
    lengths = [(source, target) for source, target in json.loads(LENGTHS.read_text(encoding="utf-8"))]
    payloads = payloads_of_lengths(context, "real-lengths", lengths)
    programs = {"step_level": ("-m", "server"), "request_level": ("-m", "benchmarks.serving.request_level")}
    names = {"step_level": "per step", "request_level": "per request"}
    seconds = 6 * context.visit_seconds
    with ExitStack() as exits:
        curves: list[tuple[Curve, Served, LoadGenerator]] = []
        for key, program in programs.items():
            system = attendant_server(
                context, payloads=payloads, num_workers=1, num_threads=1, program=program, name=names[key]
            )
            served = exits.enter_context(Served(system))
            generator = exits.enter_context(LoadGenerator(served))
            curve = Curve(names[key], key)
            load = Load(kind="closed", num_clients=CAPACITY_CLIENTS, seconds=seconds / 2)
            generator.run(load)
            curve.capacity = generator.run(load).speed
            context.say(f"{curve.name}: capacity {curve.capacity:,.0f} requests/s")
            curves.append((curve, served, generator))
        # The same rates for both, and for each its own of its own capacity.
        capacities = {curve.capacity for curve, _, _ in curves}
        rates = sorted({round(fraction * capacity, 1) for capacity in capacities for fraction in FRACTIONS})
        for seed in range(1, NUM_RUNS + 1):
            for rate in rates:
                for curve, served, generator in curves:
                    # Beyond its capacity a queue only grows: that is known without waiting for it.
                    if rate <= max(FRACTIONS) * curve.capacity + 0.1:
                        _visit(curve, served, generator, Load(kind="open", rate=rate, seconds=seconds, seed=seed))
                said = [f"{c.name} {c.latency(rate, 99):,.0f}" for c, _, _ in curves if rate in c.reports]
                context.say(f"run {seed} of {NUM_RUNS}, {rate:,.0f} requests/s: p99 ms {'; '.join(said)}")
    return _part([curve for curve, _, _ in curves])


def _visit(curve: Curve, served: Served, generator: LoadGenerator, load: Load) -> None:
    before = served.metrics()
    curve.reports.setdefault(load.rate, []).append(generator.run(load))
    after = served.metrics()
    means = [mean_between(name, before, after) for name in ("attendant_step_rows", "attendant_batch_efficiency_ratio")]
    curve.means[load.rate] = means


def _part(curves: Sequence[Curve]) -> Part:
    rows: list[list[Cell]] = []
    for curve in curves:
        for rate in sorted(curve.reports):
            step_rows, efficiency = curve.means[rate]
            p50, p99 = curve.latency(rate, 50), curve.latency(rate, 99)
            of_capacity = f"{100 * rate / curve.capacity:.0f} %"
            rows.append([curve.name, rate, of_capacity, p50, p99, step_rows, f"{100 * (1 - efficiency):.0f} %"])
    ours, theirs = curves
    return Part(
        title="Poisson load, lengths of real sentences",
        about=(
            "One worker, one thread, int8, greedy; 5 to 80 source positions and steps. Latency counts from the planned "
            "moment of each arrival. Per request: the same server, which lets nobody join a batch that runs. Capacity: "
            f"what {CAPACITY_CLIENTS} clients in a closed loop got: {ours.name} {ours.capacity:,.0f} requests/s, "
            f"{theirs.name} {theirs.capacity:,.0f}."
        ),
        columns=["batching", "requests/s", "of its capacity", "p50 ms", "p99 ms", "rows per step", "padding waste"],
        rows=rows,
        figures=_figures(ours, theirs),
        pictures=[
            Picture(
                file="open-loop.svg",
                title="p99 against load",
                x_label="requests/s",
                y_label="p99, ms",
                logarithmic=True,
                series=[
                    Series(
                        name=f"batching {curve.name}",
                        xs=[x for x, _ in curve.points()],
                        ys=[y for _, y in curve.points()],
                    )
                    for curve in curves
                ],
            )
        ],
    )


def _figures(ours: Curve, theirs: Curve) -> dict[str, float]:
    figures = {"step_level_capacity": ours.capacity, "request_level_capacity": theirs.capacity}
    # 80 % of the slower one's capacity: both can bear it.
    rate = round(YARDSTICK_FRACTION * min(ours.capacity, theirs.capacity), 1)
    if rate in ours.reports and rate in theirs.reports:
        p99 = theirs.latency(rate, 99)
        figures |= {"step_level_p99_80": ours.latency(rate, 99), "request_level_p99_80": p99}
        equal = rate_at(ours.points(), p99)
        if equal is not None:
            figures |= {"step_level_rate_at_p99": equal, "request_level_rate_at_p99": rate}
    return figures


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
