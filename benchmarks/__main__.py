"""python -m benchmarks: how fast Attendant decodes and serves, and how far that is from its limits."""

from attendant.runtime.command import exit_command
from benchmarks.command import Suite, run_suite
from benchmarks.decoding.bookkeeping import bookkeeping
from benchmarks.decoding.own import alone, decoding
from benchmarks.decoding.products import limit
from benchmarks.serving.closed_loop import served
from benchmarks.serving.open_loop import open_loop
from benchmarks.serving.overhead import idle_latency, overhead
from benchmarks.serving.priority import idle, priority
from benchmarks.serving.soak import memory

SUITE = Suite(
    command="benchmarks",
    name="serving",
    title="Speed of decoding and serving",
    about="Measures each part on a machine that should do nothing else.",
    parts={
        "limit": limit,
        "decoding": decoding,
        "alone": alone,
        "bookkeeping": bookkeeping,
        "served": served,
        "overhead": overhead,
        "idle-latency": idle_latency,
        "open-loop": open_loop,
        "priority": priority,
        "memory": memory,
        "idle": idle,
    },
)

if __name__ == "__main__":
    exit_command("benchmarks", lambda: run_suite(SUITE))
