"""Overload and deadlines."""

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from statistics import mean

import pytest

from attendant.server.bench.load import Answered, Load
from attendant.server.worker_main import NICENESS
from attendant_client.v1 import seq2seq_pb2 as messages
from benchmarks.harness import Process
from benchmarks.servers import empty_service, running
from tests.faults.conftest import Figure
from tests.faults.figures import at_least, at_most, if_a_core_is_free
from tests.faults.load import Caller, caller, milliseconds
from tests.paths import ROOT
from tests.server_process import server

TIMES = (1.3, 2.0, 3.0, 10.0)
"""Offered loads, as multiples of the capacity."""

CAPACITY_CLIENTS = 24
SECONDS = 5.0
DEADLINE_SECONDS = 2.0
ROUNDS = 2
MIN_SHARE = 0.85
MAX_LATE = 0.02
MAX_REFUSAL_MS = 20.0
LATE = ("DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED: the queue took longer")

# Each request takes 32 rows for about 40 steps. Refusing those beyond the capacity costs little in comparison.
HEAVY = [
    messages.GenerateRequest(text=word, decoding=messages.DecodingOptions(beam_size=32, min_length=36))
    for word in ("internationalization", "phoneme", "attendant", "refrigerator")
]

BUSY = f"""\
import os
import numpy as np
os.nice({NICENESS})
matrix = np.ones((512, 512), np.float32)
while True:
    matrix @ matrix
"""


@pytest.fixture(params=(1, 2))
def overloaded(request: pytest.FixtureRequest) -> Iterator[tuple[int, Caller]]:
    """Yields the number of workers of a warm server, and its caller."""
    workers: int = request.param
    options = "--precision", "fp32", "--workers", str(workers), "--max-wait-seconds", "2", "--log-level", "warning"
    with (
        server(str(ROOT / "models" / "g2p-en"), *options) as running,
        caller(running.target, HEAVY) as loud,
    ):
        loud.call(Load(kind="closed", num_clients=CAPACITY_CLIENTS, seconds=3.0))
        yield workers, loud


@pytest.mark.reliability
@pytest.mark.timeout(600)
@pytest.mark.parametrize("deadline", [DEADLINE_SECONDS, 0.0], ids=["deadlines", "none"])
def test_goodput_under_overload(overloaded: tuple[int, Caller], deadline: float, figure: Figure) -> None:
    """Measures goodput: answers before their deadlines, over the time from the first request to the last answer.

    The peak is the highest goodput of the closed loop and all loads in the same round. The caller measures the time of
    refusals; it shares the machine's cores with the server.
    """
    workers, loud = overloaded
    shares, late, refusals = defaultdict[float, list[float]](list), defaultdict[float, list[float]](list), list[float]()
    capacity = 0.0
    for number in range(ROUNDS):
        closed = _goodput(loud.call(Load(kind="closed", num_clients=CAPACITY_CLIENTS, seconds=SECONDS)))
        capacity = max(capacity, closed)
        goodputs = {}
        for times in TIMES:
            load = Load(kind="open", rate=times * capacity, seconds=SECONDS, seed=number, timeout_seconds=deadline)
            answered = loud.call(load)
            assert {words.partition(":")[0] for words in answered.failures} <= {
                "RESOURCE_EXHAUSTED",
                "DEADLINE_EXCEEDED",
            }
            goodputs[times] = _goodput(answered)
            num_late = sum(words.startswith(LATE) for words in answered.failures)
            late[times].append(num_late / max(1, num_late + len(answered.latencies)))
        refused = zip(answered.failures, answered.failure_seconds, strict=True)
        refusals += [took for words, took in refused if not words.startswith(LATE)]
        peak = max(closed, *goodputs.values())
        for times, goodput in goodputs.items():
            # If the host was slow while the capacity was measured, the load is below the real capacity.
            shares[times].append(goodput / min(peak, times * capacity))
    of = f"{'deadlines of 2 s' if deadline else 'no deadlines'}, {workers} worker{'s' * (workers > 1)}"
    bound = if_a_core_is_free(workers, at_most(MAX_REFUSAL_MS))
    figure(f"refusals at 10 x capacity, p99, {of}", milliseconds(refusals, 99), bound, "ms")
    for times in TIMES:
        bound = if_a_core_is_free(workers, at_least(MIN_SHARE))
        figure(f"goodput at {times:g} x capacity, {of}", mean(shares[times]), bound, "of the peak")
        if deadline:
            figure(f"admitted and late at {times:g} x capacity, {of}", mean(late[times]), at_most(MAX_LATE), "of them")
    left, plain_ms = _left_by_a_plain_server(workers, TIMES[-1] * capacity)
    figure(f"a plain server's refusals at as many calls, p99, {of}", plain_ms, None, "ms")
    figure(f"processor time that a plain server leaves at as many calls, {of}", left, None, "of it")


def _left_by_a_plain_server(num_busy: int, rate: float) -> tuple[float, float]:
    """Measures the limits of goodput and refusals: a server without Attendant's code, with busy processes as workers.

    Returns:
        The share of their processor time that the busy processes keep while the server refuses `rate` calls a second,
        and the p99 of the refusals in ms.
    """
    with ExitStack() as exits:
        plain = exits.enter_context(
            running(empty_service([request.SerializeToString() for request in HEAVY], refuses=True))
        )
        loud = Caller(plain.generator)
        command, one_thread = [sys.executable, "-c", BUSY], {"OPENBLAS_NUM_THREADS": "1"}
        busy = [exits.enter_context(Process(command, one_thread)) for _ in range(num_busy)]
        shares, refusals = list[float](), list[float]()
        for number in range(ROUNDS):
            undisturbed = _cpu_share(busy, partial(time.sleep, SECONDS))
            load = Load(kind="open", rate=rate, seconds=SECONDS, seed=number)
            alongside = _cpu_share(busy, lambda load=load: refusals.extend(loud.call(load).failure_seconds))
            shares.append(alongside / undisturbed)
    return mean(shares), milliseconds(refusals, 99)


def _cpu_share(processes: Sequence[Process], wait: Callable[[], object]) -> float:
    """Returns the processes' processor time during `wait`, divided by the time that `wait` takes."""
    before, start = sum(process.cpu_seconds() for process in processes), time.monotonic()
    wait()
    return (sum(process.cpu_seconds() for process in processes) - before) / (time.monotonic() - start)


def _goodput(answered: Answered) -> float:
    return len(answered.latencies) / answered.seconds
