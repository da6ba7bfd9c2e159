"""A server as a process, from its start to its end, and the load generator that asks it."""

import base64
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from attendant.server.bench.command import addresses
from attendant.server.bench.load import Answered, Load
from benchmarks.command import Context
from benchmarks.decoding.in_process import NUM_WORKERS
from benchmarks.harness.measurement import System, Unavailable, Visit, Visits
from benchmarks.harness.process import KEEP_MEMORY, Process
from benchmarks.program import program
from benchmarks.serving.payloads import equal_work, generate_requests

START_SECONDS = 180.0
WARM_UP_SECONDS = 1.0
MAX_LIGHT_ROWS = 4096
UNARY = "/attendant.v1.Seq2Seq/Generate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """How a server is started and asked.

    Attributes:
        key, name, about: as in `System`.
        command: makes what is missing; returns what is run, which prints `serving on HOST:PORT` when it is ready, and
            may add `metrics on HOST:PORT`. Raises Unavailable.
        requests: serialized; the load generator sends them in turn.
        method: the full name of the unary call that takes them.
        max_starts: how often a start that fails is tried.
        keeps_memory: whether glibc is told to keep what is freed (KEEP_MEMORY), as in all that is timed.
    """

    key: str
    name: str
    command: Callable[[], Sequence[str]]
    requests: Sequence[bytes]
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
    requests: Sequence[bytes] = (),
    num_workers: int = NUM_WORKERS,
    num_threads: int = NUM_WORKERS,
    precision: str = "int8",
    module: str = "server",
) -> Server:
    """The public command.

    Args:
        bundle: None: the context's.
        requests: empty: sentences of the workload's length.
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
        requests=requests or generate_requests(equal_work(context)),
        about=f"{precision}, {layout}",
    )


def empty_service(requests: Sequence[bytes]) -> Server:
    """What gRPC alone costs."""
    command = program("serving.echo_server:echo")
    return Server(key="empty", name="empty service", command=lambda: command, requests=requests)


def refusing_service(requests: Sequence[bytes]) -> Server:
    """What gRPC alone takes to refuse."""
    command = program("serving.echo_server:refuse")
    return Server(key="refusing", name="refusing service", command=lambda: command, requests=requests)


def under(server: Server, loads: Mapping[str, Load], warm_ups: Sequence[Load] = ()) -> System:
    """A server under each of these loads in every round, by the endings of their figures' names.

    Args:
        warm_ups: before the first round; empty: each of the loads, for a second at most.
    """

    def start() -> Iterator[Visits]:
        with running(server) as run:
            short = [replace(load, seconds=min(WARM_UP_SECONDS, load.seconds)) for load in loads.values()]
            for load in warm_ups or short:
                run.load(load)
            yield {point: run.visit(load) for point, load in loads.items()}

    return System(key=server.key, name=server.name, start=start, about=server.about)


@contextmanager
def running(server: Server) -> Iterator["Running"]:
    """Waits until it serves; ends it, and its load generator, afterwards. Raises Unavailable."""
    command = server.command()
    for num_left in reversed(range(server.max_starts)):
        with ExitStack() as exits:
            process = exits.enter_context(Process(command, KEEP_MEMORY if server.keeps_memory else None))
            try:
                found = _addresses(process)
            except Unavailable:
                if not num_left:
                    raise
                continue
            generator = exits.enter_context(load_generator(found["serving"], server.requests, server.method))
            yield Running(process, found, generator)
            return


def _addresses(process: Process) -> dict[str, str]:
    """Waits until a server says where it serves. Raises Unavailable."""
    give_up = time.monotonic() + START_SECONDS
    while process.is_running and time.monotonic() < give_up:
        if found := addresses(process.said()):
            return found
        time.sleep(0.05)
    raise process.failure()


@contextmanager
def load_generator(target: str, requests: Sequence[bytes], method: str = UNARY) -> Iterator[Process]:
    """A process that sends these requests in turn; it is asked each `Load`, and answers `Answered`.

    Args:
        method: the unary call that takes them.
    """
    with tempfile.NamedTemporaryFile() as file:
        file.writelines(base64.b64encode(request) + b"\n" for request in requests)
        file.flush()
        command = program("serving.generator:generate", target=target, requests=file.name, method=method)
        with Process(command, answers=True) as process:
            process.await_ready()
            yield process


@dataclass(frozen=True, slots=True)
class Running:
    """A server that runs, with its load generator."""

    process: Process
    addresses: Mapping[str, str]
    generator: Process

    def visit(self, load: Load) -> Visit:
        return lambda number: self.load(replace(load, seed=number))

    def load(self, load: Load) -> dict[str, float]:
        """Answers per second, percentiles of the latency in ms, the processor time of all the server's processes and
        of the load generator per answer in ms, and the number of answers; of streamed answers also percentiles until
        their first message.
        Of a server with metrics also the rows of its steps and the share of useful cells, in the mean.

        Raises:
            Unavailable: the server refused a request, or ended.
        """
        return self.watched(load)[0]

    def watched(self, load: Load) -> tuple[dict[str, float], Mapping[str, float]]:
        """The figures of a load, and by how much the samples of the server's metrics grew; see `load` and `metrics`."""
        before, processes = self.metrics(), {"cpu_ms": self.process, "generator_ms": self.generator}
        cpu_seconds = {name: one.cpu_seconds() for name, one in processes.items()}
        self.generator.ask(asdict(load))
        answered = Answered(**self.generator.answer())
        num = len(answered.latencies)
        if answered.failures or not num:
            raise Unavailable(f"{len(answered.failures)} requests failed: {answered.failures[:1]}")
        cpu = {name: 1e3 * (one.cpu_seconds() - cpu_seconds[name]) / num for name, one in processes.items()}
        p50, p99 = (1e3 * np.percentile(answered.latencies, (50, 99))).tolist()
        found = {"speed": num / answered.seconds, "p50": p50, "p99": p99, **cpu, "answers": num}
        if answered.firsts:
            found["first_p50"], found["first_p99"] = (1e3 * np.percentile(answered.firsts, (50, 99))).tolist()
        if grown := growth(before, self.metrics()):
            found["step_rows"] = mean_of("attendant_step_rows", grown)
            found["efficiency"] = mean_of("attendant_batch_efficiency_ratio", grown)
        return found, grown

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


def growth(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """By how much each sample has grown between two readings of `Running.metrics`."""
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


def mean_of(name: str, grown: Mapping[str, float]) -> float:
    """The mean of what a histogram took in, of the `growth` of its samples."""
    return grown[f"{name}_sum"] / grown[f"{name}_count"]
