"""Holds the simulation against the servers that it is meant to be."""

import statistics

from attendant.server.bench.load import Load
from benchmarks.capacity.costs import Costs
from benchmarks.capacity.simulation import Lengths, Setting, simulate
from benchmarks.harness.results import Cell

SIMULATED_SECONDS = 20.0
WARM_UP_SECONDS = 1.0
FIGURES = {"answered_per_second": "requests/s", "p50_ms": "p50 ms", "p99_ms": "p99 ms"}
PARTS = ("", ", turns", ", simulated", ", off")
COLUMNS = ["load", "turns alone", *(figure + part for figure in FIGURES.values() for part in PARTS)]


def compared(costs: Costs, lengths: Lengths) -> list[list[Cell]]:
    """A row of COLUMNS for each load that was observed: the mean of the turns in which nothing else ran, how far the
    least and the most of them are from it, and the simulation.
    """
    rows: list[list[Cell]] = []
    for one in costs.observed:
        setting = Setting(num_workers=one.num_workers, num_cores=one.num_cores, generator_here=True)
        kind = "closed" if one.clients else "open"
        load = Load(kind=kind, num_clients=one.clients, rate=one.rate, seconds=SIMULATED_SECONDS)
        found = simulate(costs, setting, lengths, load, warm_up=WARM_UP_SECONDS)
        simulated = found.answered_per_second, 1e3 * found.latency(0.5), 1e3 * found.latency(0.99)
        row: list[Cell] = [str(one), f"{len(one.alone)} of {len(one.turns)}"]
        for name, value in zip(FIGURES, simulated, strict=True):
            turns = [getattr(turn, name) for turn in one.alone]
            measured = statistics.fmean(turns)
            spread = f"{_off(min(turns), measured)} to {_off(max(turns), measured)}"
            row += [measured, spread, value, _off(value, measured)]
        rows.append(row)
    return rows


def _off(value: float, measured: float) -> str:
    return f"{100 * (value / measured - 1):+.0f} %"
