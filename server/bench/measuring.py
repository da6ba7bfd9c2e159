"""Which layout of workers serves a bundle best on this host, and how long answers take at several loads."""

import asyncio
import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from attendant.runtime.errors import UserError, one_line
from attendant.server.bench.host import Served, serving
from attendant.server.bench.load import Load, asked

METHOD = "/attendant.v1.Seq2Seq/Generate"
CLIENTS_PER_CPU = (4, 32)
MAX_CLIENTS = 1000
"""That is how many calls a server takes from one connection at once."""

RATES = (0.25, 0.5, 0.75, 0.9)
"""Of what the best layout can answer."""

RATE_PARTS = 2
"""Arrivals at random need longer than clients who wait for their answers."""

LEAST_SECONDS = 0.2
"""Of a visit: fewer answers say nothing."""

BUSY_GENERATOR = 0.9
"""Share of a core, above which the load generator may be what limits a visit."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a server's engines share this host's processors."""

    workers: int
    threads: int

    @property
    def options(self) -> tuple[str, ...]:
        return "--workers", str(self.workers), "--threads", str(self.threads)

    def __str__(self) -> str:
        return " ".join(self.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """What came of a load.

    Attributes:
        clients: of a closed loop: each asks again when it was answered; 0: arrivals at random.
        rate: requests that were asked for each second; of a closed loop those that were answered.
        p50_ms, p99_ms: of the latency; of arrivals at random from the moment that was planned for each.
        resident_mib: of all the server's processes, afterwards.
        generator_share: of a core, that the load generator took.
    """

    layout: Layout
    clients: int
    rate: float
    answered_per_second: float
    p50_ms: float
    p99_ms: float
    resident_mib: float
    generator_share: float


@dataclass(frozen=True, slots=True)
class Found:
    """All visits, and the layout that answers most in a closed loop of many clients."""

    closed: list[Visit]
    opened: list[Visit]
    best: Layout

    @property
    def capacity(self) -> float:
        """Requests per second of the best layout."""
        return max(visit.answered_per_second for visit in self.closed if visit.layout == self.best)

    @property
    def resident_mib(self) -> float:
        """The most that the best layout has taken."""
        return max(visit.resident_mib for visit in self.closed + self.opened if visit.layout == self.best)


def layouts(num_cpus: int) -> list[Layout]:
    """One worker with all threads, twice as many workers with half of them each, and so on to one thread each."""
    powers = itertools.takewhile(lambda number: number < num_cpus, (2**exponent for exponent in itertools.count()))
    return [Layout(number, num_cpus) for number in (*powers, num_cpus)]


def measured(
    bundle: Path, payloads: Sequence[bytes], num_cpus: int, seconds: float, say: Callable[[str], None]
) -> Found:
    """Starts a server for each layout and loads it; then the best one once more, with arrivals at random.

    Args:
        seconds: of load, all visits together; each server takes a moment more to start.

    Raises:
        UserError: a server does not come up, or refuses requests; too little time.
    """
    tried, clients = layouts(num_cpus), sorted({1, *(min(MAX_CLIENTS, part * num_cpus) for part in CLIENTS_PER_CPU)})
    num_parts = (1 + len(clients)) * len(tried) + 1 + RATE_PARTS * len(RATES)
    if seconds < LEAST_SECONDS * num_parts:
        least = math.ceil(LEAST_SECONDS * num_parts)
        raise UserError(f"--seconds is {seconds:g}, must be {least} or more on this host of {num_cpus} CPUs")
    warm_up = Load(kind="closed", num_clients=clients[-1], seconds=seconds / num_parts)
    closed: list[Visit] = []
    for layout in tried:
        with serving(bundle, layout.options) as served:
            visit = partial(_visit, served, layout, itertools.cycle(payloads))
            visit(warm_up)
            for number in clients:
                closed.append(visit(replace(warm_up, num_clients=number)))
                say(line_of(closed[-1]))
    best = max((one for one in closed if one.clients == clients[-1]), key=lambda one: one.answered_per_second)
    opened: list[Visit] = []
    with serving(bundle, best.layout.options) as served:
        visit = partial(_visit, served, best.layout, itertools.cycle(payloads))
        visit(warm_up)
        for share in RATES:
            rate = share * best.answered_per_second
            opened.append(visit(Load(kind="open", rate=rate, seconds=RATE_PARTS * warm_up.seconds)))
            say(line_of(opened[-1]))
    return Found(closed, opened, best.layout)


def _visit(
    served: Served,
    layout: Layout,
    payloads: "itertools.cycle[bytes]",
    load: Load,
) -> Visit:
    """Loads the server once. Raises UserError where it refuses a request."""
    cpu_seconds = time.process_time()
    found = asyncio.run(asked(served.target, METHOD, payloads, load))
    if found.failures:
        num, failed = len(found.failures) + len(found.latencies), len(found.failures)
        raise UserError(f"the server refused {failed} of {num} requests: {one_line(found.failures[0])}")
    if not found.latencies:
        raise UserError(f"within {load.seconds:.1f} s nothing was asked at {load.rate:.1f} requests/s: raise --seconds")
    p50, p99 = 1e3 * np.percentile(found.latencies, (50, 99))
    return Visit(
        layout=layout,
        clients=load.num_clients if load.kind == "closed" else 0,
        rate=load.rate or len(found.latencies) / found.seconds,
        answered_per_second=len(found.latencies) / found.seconds,
        p50_ms=float(p50),
        p99_ms=float(p99),
        resident_mib=served.resident_mib(),
        generator_share=(time.process_time() - cpu_seconds) / found.seconds,
    )


def line_of(visit: Visit) -> str:
    """A visit, in words."""
    asked = f"{visit.clients} clients" if visit.clients else f"{visit.rate:,.0f}/s at random"
    figures = f"{visit.answered_per_second:,.1f} requests/s, p50 {visit.p50_ms:,.1f} ms, p99 {visit.p99_ms:,.1f} ms"
    return f"{visit.layout}, {asked}: {figures}, {visit.resident_mib:,.0f} MiB"
