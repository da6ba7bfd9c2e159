"""Open loop: Poisson arrivals that don't wait for answers, with the lengths of real sentences."""

import json
import random
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks.command import Context
from benchmarks.decoding.in_process import job_of
from benchmarks.harness.measurement import Visit, Visits, measure, running_system
from benchmarks.harness.results import Cell, Part, Picture
from benchmarks.job import sentences
from benchmarks.serving.generator import Load
from benchmarks.serving.payloads import generate_request, write_payloads
from benchmarks.serving.servers import Running, attendant_server, mean_between, running

LENGTHS = Path(__file__).parent / "lengths.json"
"""Words and punctuation marks of 1,000 pairs of sentences of 5 to 80, English and French: how long they are, nothing
else. Drawn at random from the test split of what recipes/translate-debdocs-en-fr.toml fetches, by sentences."""

FRACTIONS = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Of the capacity."""

YARDSTICK_FRACTION = 0.8
CAPACITY_CLIENTS = 192
NUM_RUNS = 2
PROGRAMS = {"per step": "server", "per request": "benchmarks.serving.request_level"}
MEASURED = ("p99", "p50", "step_rows", "efficiency")
Curve = list[tuple[float, float]]
"""(requests/s, p99 in ms), by rate."""


def open_loop(context: Context) -> Part:
    """Poisson load, lengths of real sentences.

    One worker, one thread, int8, greedy; 5 to 80 source positions and steps. Latency counts from the planned moment of
    each arrival. Per request: the same server, which lets nobody join a batch that runs. Capacity: what 192 clients in
    a closed loop get.
    """
    payloads, seconds = _payloads(context), 6 * context.visit_seconds
    load = Load(kind="closed", num_clients=CAPACITY_CLIENTS, seconds=seconds / 2)
    runs: dict[str, Running] = {}
    capacities: dict[str, float] = {}
    with ExitStack() as exits:
        for name, program in PROGRAMS.items():
            server = attendant_server(context, payloads=payloads, num_workers=1, num_threads=1, program=program)
            runs[name] = exits.enter_context(running(server))
            runs[name].load(load)
            capacities[name] = runs[name].load(load)["speed"]
            context.say(f"{name}: capacity {capacities[name]:,.0f} requests/s")
        # The same rates for both, and for each its own of its own capacity.
        rates = sorted({round(part * capacity, 1) for capacity in capacities.values() for part in FRACTIONS})
        systems = [
            running_system(name, name, _visits(run, rates, capacities[name], seconds)) for name, run in runs.items()
        ]
        found = measure(systems, num_rounds=NUM_RUNS, say=context.say)
    rows: list[list[Cell]] = []
    curves: dict[str, Curve] = {name: [] for name in PROGRAMS}
    for one in found:
        name = one.system.name
        for rate in (rate for rate in rates if f"p99_{rate}" in one.samples):
            p99, p50, step_rows, efficiency = (one.median(f"{figure}_{rate}") for figure in MEASURED)
            shares = [f"{100 * share:.0f} %" for share in (rate / capacities[name], 1 - efficiency)]
            rows.append([name, rate, shares[0], p50, p99, step_rows, shares[1]])
            curves[name].append((rate, p99))
    series = {f"batching {name}": curve for name, curve in curves.items()}
    picture = Picture(
        file="open-loop.svg",
        title="p99 against load",
        x_label="requests/s",
        y_label="p99, ms",
        logarithmic=True,
        series=series,
    )
    capacity = ", ".join(f"{name} {value:,.0f} requests/s" for name, value in capacities.items())
    return Part(
        columns=["batching", "requests/s", "of its capacity", "p50 ms", "p99 ms", "rows per step", "padding waste"],
        rows=rows,
        figures=_figures(list(curves.values()), list(capacities.values())),
        pictures=[picture],
        note=f"Capacity {capacity}.",
    )


def _payloads(context: Context) -> Path:
    """Requests of random words, of source positions and decoder steps as in LENGTHS."""
    requests = []
    for number, (num_positions, num_steps) in enumerate(json.loads(LENGTHS.read_text(encoding="utf-8"))):
        job = replace(job_of(context), num_sentences=1, num_tokens=num_positions, seed=number)
        requests.append(generate_request(sentences(job)[0], num_steps))
    random.Random(8).shuffle(requests)
    return write_payloads(context, "real-lengths", requests)


def _visits(run: Running, rates: Sequence[float], capacity: float, seconds: float) -> Visits:
    """Requests at each rate that it can bear, for so many seconds: beyond its capacity a queue only grows."""

    def visit(rate: float) -> Visit:
        def ask(number: int) -> dict[str, float]:
            before = run.metrics()
            found = run.load(Load(kind="open", rate=rate, seconds=seconds, seed=number))
            after = run.metrics()
            found["step_rows"] = mean_between("attendant_step_rows", before, after)
            found["efficiency"] = mean_between("attendant_batch_efficiency_ratio", before, after)
            return {name: found[name] for name in MEASURED}

        return ask

    return {f"_{rate}": visit(rate) for rate in rates if rate <= max(FRACTIONS) * capacity + 0.1}


def _figures(curves: Sequence[Curve], capacities: Sequence[float]) -> dict[str, float]:
    ours, theirs = curves
    found = dict(zip(("step_level_capacity", "request_level_capacity"), capacities, strict=True))
    # 80 % of the slower one's capacity: both can bear it.
    rate = round(YARDSTICK_FRACTION * min(capacities), 1)
    if rate in dict(ours) and rate in dict(theirs):
        latency = dict(theirs)[rate]
        found |= {"step_level_p99_80": dict(ours)[rate], "request_level_p99_80": latency}
        if (equal := rate_at(ours, latency)) is not None:
            found |= {"step_level_rate_at_p99": equal, "request_level_rate_at_p99": rate}
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
