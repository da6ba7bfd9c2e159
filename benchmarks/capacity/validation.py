"""Holds the simulation against the servers that it is meant to be."""

from benchmarks.capacity.costs import Costs
from benchmarks.capacity.simulation import Lengths, Setting, closed_loop, open_loop
from benchmarks.harness.results import Cell

SIMULATED_SECONDS = 20.0
WARM_UP_SECONDS = 1.0
PAIRS = [f"{figure}{what}" for figure in ("requests/s", "p50 ms", "p99 ms") for what in ("", ", simulated", ", off")]
COLUMNS = ["load", "others", *PAIRS]


def compared(costs: Costs, lengths: Lengths) -> list[list[Cell]]:
    """A row of COLUMNS for each load that was observed."""
    rows: list[list[Cell]] = []
    for one in costs.observed:
        setting = Setting(num_workers=one.num_workers, num_cores=one.num_cores, generator_here=True)
        if one.clients:
            found = closed_loop(costs, setting, lengths, one.clients, SIMULATED_SECONDS, warm_up=WARM_UP_SECONDS)
        else:
            found = open_loop(costs, setting, lengths, one.rate, SIMULATED_SECONDS, warm_up=WARM_UP_SECONDS)
        row: list[Cell] = [str(one), None if one.others_share is None else f"{100 * one.others_share:.0f} %"]
        for measured, simulated in (
            (one.answered_per_second, found.answered_per_second),
            (one.p50_ms, 1e3 * found.latency(0.5)),
            (one.p99_ms, 1e3 * found.latency(0.99)),
        ):
            row += [measured, simulated, f"{100 * (simulated / measured - 1):+.0f} %"]
        rows.append(row)
    return rows
