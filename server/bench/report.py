"""What a bench says: the advice, a file of all figures, a picture."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from attendant.runtime.files import told_of, write_json, write_text
from attendant.server.bench.chart import chart, side_by_side
from attendant.server.bench.measuring import BUSY_GENERATOR, Found

SPARE_MEMORY = 1.5
PLANNED_RATE = 0.75
"""Of the capacity: above it, waiting times grow fast."""


def advice(bundle: Path, found: Found) -> str:
    """What to write into a deployment, and what to expect of it; several lines."""
    best, planned = found.best, min(found.opened, key=lambda visit: abs(visit.rate - PLANNED_RATE * found.capacity))
    lines = [
        f"best here: {best}",
        f"  attendant serve {bundle} {best}",
        f"  in a container: ATTENDANT_WORKERS={best.workers} ATTENDANT_THREADS={best.threads}"
        + (f", memory limit {SPARE_MEMORY * found.resident_mib:,.0f} MiB" if found.resident_mib else ""),
        f"  plan for {planned.rate:,.0f} requests/s on a host like this: p50 {planned.p50_ms:,.1f} ms, "
        f"p99 {planned.p99_ms:,.1f} ms",
    ]
    alone = min((visit for visit in found.closed if visit.clients == 1), key=lambda visit: visit.p50_ms)
    if alone.layout != best:
        lines.append(f"  a request alone is fastest with {alone.layout}: p50 {alone.p50_ms:,.1f} ms")
    if any(visit.generator_share > BUSY_GENERATOR for visit in found.closed + found.opened):
        lines.append("  the load generator was busy all the time: the server may be faster than this")
    return "\n".join(lines)


def write(folder: Path, found: Found, facts: Mapping[str, str]) -> None:
    """bench.json and bench.svg. Raises CantWrite."""
    with told_of(folder):
        folder.mkdir(parents=True, exist_ok=True)
    visits = {"closed": list(map(asdict, found.closed)), "open": list(map(asdict, found.opened))}
    write_json(folder / "bench.json", {**facts, **visits, "best": asdict(found.best), "capacity": found.capacity})
    write_text(folder / "bench.svg", picture(found, facts["model"]))


def picture(found: Found, name: str) -> str:
    """Requests per second of each layout, and the best one's latency at random arrivals, as SVG."""
    speeds: dict[str, list[tuple[float, float]]] = {}
    for visit in found.closed:
        speeds.setdefault(str(visit.layout), []).append((visit.clients, visit.answered_per_second))
    latencies = {
        "p99": [(visit.rate, visit.p99_ms) for visit in found.opened],
        "p50": [(visit.rate, visit.p50_ms) for visit in found.opened],
    }
    return side_by_side(
        [
            chart(f"{name}: closed loop", "clients", "requests/s", speeds),
            chart(f"{found.best}", "requests/s, at random", "ms", latencies),
        ]
    )
