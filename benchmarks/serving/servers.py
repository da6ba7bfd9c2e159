"""A server as a process, from its start to its end, and the load generators that ask it."""

import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from attendant.server.bench.host import addresses
from attendant.server.bench.load import Answered, Load
from benchmarks.command import Context
from benchmarks.decoding.in_process import NUM_WORKERS
from benchmarks.harness.measurement import System, Unavailable, Visit, Visits
from benchmarks.harness.process import KEEP_MEMORY, Process
from benchmarks.program import program
from benchmarks.serving.payloads import EQUAL, METHODS, UNARY

START_SECONDS = 180.0
WARM_UP_SECONDS = 1.0
MAX_LIGHT_ROWS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """How a server is started and asked.

    Attributes:
        key, name, about: as in `System`.
        command: makes what is missing; returns what is run, which prints `serving on HOST:PORT` when it is ready, and
            may add `metrics on HOST:PORT`. Raises Unavailable.
        payloads: makes a file of requests, one per line, in base64.
        method: the full name of the unary call that takes them.
        max_starts: how often a start that fails is tried.
        keeps_memory: whether glibc is told to keep what is freed (KEEP_MEMORY), as in all that is timed.
    """

    key: str
    name: str
    command: Callable[[], Sequence[str]]
    payloads: Callable[[], Path]
    method: str = UNARY
    max_starts: int = 1
    keeps_memory: bool = True
    about: str = ""


def attendant_server(
    context: Context,
    *,
    key: str = "attendant",
    name: str = "Attendant",
    bundle: Path | None = None,
    payloads: Path | None = None,
    num_workers: int = NUM_WORKERS,
    num_threads: int = NUM_WORKERS,
    precision: str = "int8",
    module: str = "server",
) -> Server:
    """The public command.

    Args:
        bundle: None: the context's.
        payloads: None: sentences of the workload's length.
        num_threads: of all workers together.
        module: that Python runs; another one takes the same options.
    """
    layout = f"--workers {num_workers} --threads {num_threads}"
    # A load generator stands for many clients; the server sees one address.
    as_many = f"--light-rows {MAX_LIGHT_ROWS}"
    options = f"--port 0 --metrics-port 0 --log-level warning --precision {precision} {layout} {as_many}".split()
    return Server(
        key=key,
        name=name,
        command=lambda: [sys.executable, "-m", module, str(bundle or context.bundle), *options],
        payloads=lambda: payloads or EQUAL.payloads(context),
        about=f"{precision}, {layout}",
    )


def empty_service(payloads: Path) -> Server:
    """What gRPC alone costs."""
    command = program("serving.echo_server:echo")
    return Server(key="empty", name="empty service", command=lambda: command, payloads=lambda: payloads)


def under(server: Server, loads: Mapping[str, Load]) -> System:
    """A server under each of these loads in every round, by the endings of their figures' names."""

    def start() -> Iterator[Visits]:
        with running(server) as run:
            yield run.visits(loads)

    return System(key=server.key, name=server.name, start=start, about=server.about)


@contextmanager
def running(server: Server) -> Iterator["Running"]:
    """Waits until it serves; ends it, and its load generators, afterwards. Raises Unavailable."""
    payloads, command = server.payloads(), server.command()
    for num_left in reversed(range(server.max_starts)):
        with ExitStack() as exits:
            process = exits.enter_context(Process(command, KEEP_MEMORY if server.keeps_memory else None))
            try:
                addresses = _addresses(process)
            except Unavailable:
                if not num_left:
                    raise
                continue
            yield Running(server.method, payloads, process, addresses, exits)
            return


def _addresses(process: Process) -> dict[str, str]:
    """Waits until a server says where it serves. Raises Unavailable."""
    give_up = time.monotonic() + START_SECONDS
    while process.is_running and time.monotonic() < give_up:
        if found := addresses(process.said()):
            return found
        time.sleep(0.05)
    raise process.failure()


@dataclass(slots=True)
class Running:
    """A server that runs, with a load generator per kind of call."""

    unary_method: str
    payloads: Path
    process: Process
    addresses: Mapping[str, str]
    exits: ExitStack
    generators: dict[str, Process] = field(default_factory=dict)
    begun_cpu_seconds: dict[str, float] = field(default_factory=dict)

    def visit(self, load: Load) -> Visit:
        return lambda number: self.load(replace(load, seed=number))

    def visits(self, loads: Mapping[str, Load]) -> Visits:
        """A visit for each load, by the same names; each has warmed the server up. Raises Unavailable."""
        for load in loads.values():
            self.load(replace(load, seconds=min(WARM_UP_SECONDS, load.seconds)))
        return {point: self.visit(load) for point, load in loads.items()}

    def load(self, load: Load) -> dict[str, float]:
        """Answers per second, percentiles of the latency in ms, the processor time of all the server's processes per
        answer in ms, and the number of answers; of streamed answers also percentiles until their first message.

        Raises:
            Unavailable: the server refused a request, or ended.
        """
        self.begin(load)
        return self.end(load)

    def watched(self, load: Load) -> tuple[dict[str, float], Mapping[str, float]]:
        """The figures of a load, and by how much the samples of the server's metrics grew; see `load` and `metrics`."""
        before = self.metrics()
        return self.load(load), growth(before, self.metrics())

    def begin(self, load: Load) -> None:
        """Starts a load, to be waited for by `end`. Bulk work and unary calls may go on at the same time."""
        method = self._method(load)
        if method not in self.generators:
            started = load_generator(self.addresses["serving"], method, self.payloads)
            self.generators[method] = self.exits.enter_context(started)
        self.begun_cpu_seconds[method] = self.process.cpu_seconds()
        self.generators[method].ask(asdict(load))

    def end(self, load: Load) -> dict[str, float]:
        """The figures of a load that was begun. Raises Unavailable."""
        method = self._method(load)
        answered = Answered(**self.generators[method].answer())
        num = len(answered.latencies)
        if answered.failures or not num:
            raise Unavailable(f"{len(answered.failures)} requests failed: {answered.failures[:1]}")
        p50, p99 = (1e3 * float(value) for value in np.percentile(answered.latencies, (50, 99)))
        cpu = 1e3 * (self.process.cpu_seconds() - self.begun_cpu_seconds[method]) / num
        found = {"speed": num / answered.seconds, "p50": p50, "p99": p99, "cpu_ms": cpu, "answers": num}
        if answered.firsts:
            firsts = (1e3 * float(value) for value in np.percentile(answered.firsts, (50, 99)))
            found |= dict(zip(("first_p50", "first_p99"), firsts, strict=True))
        return found

    def metrics(self) -> Mapping[str, float]:
        """The samples of its metrics, added up over their labels; as `name{phase}` over all labels but the phase. None
        of a server that has said of no address.
        """
        if "metrics" not in self.addresses:
            return {}
        with urllib.request.urlopen(f"http://{self.addresses['metrics']}/metrics") as response:
            text = response.read().decode()
        found: dict[str, float] = defaultdict(float)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found[sample.name] += sample.value
                if phase := sample.labels.get("phase"):
                    found[f"{sample.name}{{{phase}}}"] += sample.value
        return found

    def _method(self, load: Load) -> str:
        return METHODS.get(load.kind, self.unary_method)


@contextmanager
def load_generator(target: str, method: str, payloads: Path) -> Iterator[Process]:
    """A process that calls a method, whose requests are in a file; it is asked each `Load`, and answers `Answered`."""
    command = program("serving.generator:generate", target=target, method=method, payloads=str(payloads))
    with Process(command, answers=True) as process:
        process.await_ready()
        yield process


def growth(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """By how much each sample has grown between two readings of `Running.metrics`."""
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


def mean_of(name: str, grown: Mapping[str, float]) -> float:
    """The mean of what a histogram took in, of the `growth` of its samples."""
    return grown[f"{name}_sum"] / grown[f"{name}_count"]
