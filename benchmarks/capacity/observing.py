"""Loads servers as a simulation is loaded, for comparison with it."""

import time
from collections import defaultdict

import psutil

from attendant.runtime.process import available_cpus
from attendant.server.bench.load import Load
from benchmarks.capacity.costs import Observed, Turn
from benchmarks.serving.servers import Running

WORKERS = (1, 2)
CLIENTS = (8, 64)
RATES = (0.5, 0.7)
"""Of what the most clients got in the first turn."""

RATE_PARTS = 2
"""Arrivals at random are given longer than clients who wait for their answers."""


class Loads:
    """The same loads in every turn, and what came of them."""

    def __init__(self, seconds: float) -> None:
        """`seconds`: of each closed loop."""
        self._seconds = seconds
        self._rates: dict[int, list[float]] = {}
        self._turns: dict[tuple[int, int, float], list[Turn]] = defaultdict(list)

    def ask(self, run: Running, num_workers: int) -> None:
        """A turn of a server with so many workers. Raises Unavailable."""
        for number in CLIENTS:
            turn = _turn(run, Load(kind="closed", num_clients=number, seconds=self._seconds))
            self._turns[num_workers, number, 0.0].append(turn)
        rates = self._rates.setdefault(num_workers, [share * turn.answered_per_second for share in RATES])
        for rate in rates:
            turns = self._turns[num_workers, 0, rate]
            load = Load(kind="open", rate=rate, seconds=RATE_PARTS * self._seconds, seed=1 + len(turns))
            turns.append(_turn(run, load))

    def observed(self) -> tuple[Observed, ...]:
        return tuple(
            Observed(num_workers=workers, num_cores=available_cpus(), clients=clients, rate=rate, turns=tuple(turns))
            for (workers, clients, rate), turns in self._turns.items()
        )


def asked(run: Running, load: Load) -> tuple[dict[str, float], float]:
    """The figures of a load; and how much of a core other programs took beside it. Raises Unavailable."""

    def processor_seconds() -> float:
        """Of all programs but those that are measured."""
        times = psutil.cpu_times()
        own = run.process.cpu_seconds() + run.generator.cpu_seconds()
        return times.user + times.nice + times.system - own

    began, before = time.monotonic(), processor_seconds()
    figures = run.load(load)
    return figures, max(0.0, processor_seconds() - before) / (time.monotonic() - began)


def _turn(run: Running, load: Load) -> Turn:
    figures, others_share = asked(run, load)
    return Turn(
        answered_per_second=figures["speed"], p50_ms=figures["p50"], p99_ms=figures["p99"], others_share=others_share
    )
