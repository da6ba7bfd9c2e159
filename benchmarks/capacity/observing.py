"""Loads servers as a simulation is loaded, for comparison with it."""

import time

import psutil

from attendant.runtime.bundle.manifest import Precision
from attendant.runtime.cpu import available_cpus
from attendant.server.bench.load import Load
from benchmarks.capacity.costs import Observed
from benchmarks.command import Context
from benchmarks.serving.payloads import UNARY, real_payloads
from benchmarks.serving.servers import Running, attendant_server, running

WORKERS = (1, 2)
CLIENTS = (8, 64)
RATES = (0.5, 0.7)
"""Of what the most clients got."""

RATE_PARTS = 2
"""Arrivals at random are given longer than clients who wait for their answers."""

WARM_UP_SECONDS = 1.0


def observed(context: Context, precision: Precision, seconds: float) -> tuple[Observed, ...]:
    """Loads a server with one worker and with two, so many seconds for each closed loop."""
    found = []
    for num_workers in WORKERS:
        server = attendant_server(
            context,
            payloads=real_payloads(context),
            num_workers=num_workers,
            num_threads=num_workers,
            precision=precision,
        )
        with running(server) as run:
            run.load(Load(kind="closed", num_clients=CLIENTS[-1], seconds=WARM_UP_SECONDS))
            for number in CLIENTS:
                load = Load(kind="closed", num_clients=number, seconds=seconds)
                found.append(_observed(run, load, num_workers))
            capacity = found[-1].answered_per_second
            for share in RATES:
                load = Load(kind="open", rate=share * capacity, seconds=RATE_PARTS * seconds)
                found.append(_observed(run, load, num_workers))
    for one in found:
        context.say(repr(one))
    return tuple(found)


def _observed(run: Running, load: Load, num_workers: int) -> Observed:
    def processor_seconds() -> tuple[float, float]:
        """Of all programs, and of those that are measured."""
        times = psutil.cpu_times()
        generator = run.generators[UNARY].cpu_seconds()
        return times.user + times.nice + times.system, run.process.cpu_seconds() + generator

    began, before = time.monotonic(), processor_seconds()
    figures = run.load(load)
    everything, own = (after - one for after, one in zip(processor_seconds(), before, strict=True))
    return Observed(
        num_workers=num_workers,
        num_cores=available_cpus(),
        clients=load.num_clients if load.kind == "closed" else 0,
        rate=load.rate or figures["speed"],
        answered_per_second=figures["speed"],
        p50_ms=figures["p50"],
        p99_ms=figures["p99"],
        others_share=max(0.0, everything - own) / (time.monotonic() - began),
    )
