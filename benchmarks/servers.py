"""Runs servers, each in its own processes, and load generators in others."""

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

from attendant.server.bench.command import METHOD, addresses
from attendant.server.bench.load import Answered, Load
from attendant_client.v1 import seq2seq_pb2 as messages
from benchmarks.decoding import NUM_WORKERS
from benchmarks.harness import KEEP_MEMORY, Process, System, Unavailable, Visit, Visits
from benchmarks.job import program, words_of
from benchmarks.workload import Context, Work, equal_work

OPTIONS = f"--precision int8 --workers {NUM_WORKERS} --threads {NUM_WORKERS}"
START_SECONDS = 180.0
MAX_STARTS = 3  # A start of Triton fails if its processes don't find each other within a second.
WARM_UP_SECONDS = 1.0
MANY_CLIENTS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server that can be started and called.

    Attributes:
        name, about: as in `System`.
        command: makes missing files; returns the command, which prints `serving on HOST:PORT` when it is ready, and may
            add `metrics on HOST:PORT`. Raises Unavailable.
        requests: serialized; the load generator sends them in turn.
        method: the full path of its unary call.
    """

    name: str
    command: Callable[[], Sequence[str]]
    requests: Sequence[bytes]
    method: str = METHOD
    about: str = ""


def requests_of(work: Work) -> list[bytes]:
    """Returns serialized requests with texts. The last of a request's steps decides whether it ends or is cut."""
    requests = []
    for source, num_steps in work:
        decoding = messages.DecodingOptions(beam_size=1, max_length=max(1, num_steps - 1))
        requests.append(messages.GenerateRequest(text=words_of(source), decoding=decoding).SerializeToString())
    return requests


def attendant_server(
    context: Context,
    options: str = OPTIONS,
    *,
    name: str = "Attendant",
    bundle: Path | None = None,
    requests: Sequence[bytes] = (),
    per_request: bool = False,
) -> Server:
    """Returns our server.

    Args:
        options: its command line's, besides those that all benchmarks share.
        bundle: if None, the context's.
        requests: if empty, sentences of the workload's length.
        per_request: batches whole requests instead of steps.
    """
    # The load generator acts as many clients, and the server sees one address.
    shared = "--port 0 --metrics-port 0 --log-level warning --light-rows 4096"

    def command() -> list[str]:
        arguments = [str(bundle or context.bundle), *shared.split(), *options.split()]
        if per_request:
            return program("own_worker:serve_per_request", arguments=arguments)
        return [sys.executable, "-m", "server", *arguments]

    return Server(
        name=name, command=command, requests=requests or requests_of(equal_work(context.workload)), about=options
    )


def empty_service(requests: Sequence[bytes], *, refuses: bool = False) -> Server:
    """Returns a service that does nothing or refuses everything, to measure the time that gRPC itself takes."""
    command = program("programs:serve_nothing", refuses=refuses)
    return Server(name="empty service", command=lambda: command, requests=requests)


def closed(context: Context, num_clients: int = MANY_CLIENTS, kind: str = "closed") -> Load:
    """Returns a load for a visit: each of the clients sends its next request when it has its answer."""
    return Load(kind=kind, num_clients=num_clients, seconds=2 * context.visit_seconds)


def under(server: Server, loads: Mapping[str, Load]) -> System:
    """Returns a server under each of the loads in every round, by their names in the table.

    Before the first round, each of the loads warms it up for at most a second, in a closed loop if it is open.
    """

    def start() -> Iterator[Visits]:
        with running(server) as run:
            for load in loads.values():
                kind = "closed" if load.kind == "open" else load.kind
                run.load(replace(load, kind=kind, seconds=min(WARM_UP_SECONDS, load.seconds)))
            yield {point: run.visit(load) for point, load in loads.items()}

    return System(name=server.name, start=start, about=server.about)


@contextmanager
def running(server: Server) -> Iterator["Running"]:
    """Runs a server and its load generator. Raises Unavailable."""
    command = server.command()
    for num_left in reversed(range(MAX_STARTS)):
        with ExitStack() as exits:
            process = exits.enter_context(Process(command, KEEP_MEMORY))
            give_up = time.monotonic() + START_SECONDS
            while not (ports := addresses(process.output())) and process.is_running and time.monotonic() < give_up:
                time.sleep(0.05)
            if ports:
                generator = exits.enter_context(load_generator(ports["serving"], server.requests, server.method))
                yield Running(process, ports, generator)
                return
            if not num_left:
                raise process.failure()


@contextmanager
def load_generator(target: str, requests: Sequence[bytes], method: str = METHOD) -> Iterator[Process]:
    """Runs a load generator, which sends these requests in turn: questions are `Load`s, answers `Answered`s."""
    with tempfile.NamedTemporaryFile() as file:
        file.writelines(base64.b64encode(request) + b"\n" for request in requests)
        file.flush()
        command = program("programs:generate_load", target=target, requests=file.name, method=method)
        with Process(command, answers=True) as process:
            process.await_ready()
            yield process


@dataclass(frozen=True, slots=True)
class Running:
    """A running server with its load generator."""

    process: Process
    addresses: Mapping[str, str]
    generator: Process

    def visit(self, load: Load) -> Visit:
        return lambda number: self.load(replace(load, seed=number))

    def load(self, load: Load) -> dict[str, float]:
        """Loads the server. Raises Unavailable if it refuses a request or ends.

        Returns:
            Answers per second; percentiles of the latency in ms, and for streamed answers of the time to the first
            message; the server's processor time per answer in ms; the number of answers. If the server has metrics:
            their growth, the mean rows of its steps and the share of useful cells.
        """
        before, cpu_seconds = self.metrics(), self.process.cpu_seconds()
        self.generator.ask(asdict(load))
        answered = Answered(**self.generator.answer())
        num = len(answered.latencies)
        if answered.failures or not num:
            raise Unavailable(f"{len(answered.failures)} requests failed: {answered.failures[:1]}")
        cpu_ms = 1e3 * (self.process.cpu_seconds() - cpu_seconds) / num
        samples = {"speed": num / answered.seconds, "cpu_ms": cpu_ms, "answers": num}
        for name, seconds in (("", answered.latencies), ("first_", answered.firsts)):
            if seconds:
                samples[f"{name}p50"], samples[f"{name}p99"] = (1e3 * np.percentile(seconds, (50, 99))).tolist()
        if growth := {name: value - before.get(name, 0.0) for name, value in self.metrics().items()}:
            samples |= growth
            samples["step_rows"] = mean_of("attendant_step_rows", growth)
            samples["efficiency"] = mean_of("attendant_batch_efficiency_ratio", growth)
        return samples

    def metrics(self) -> Mapping[str, float]:
        """Returns the samples of its metrics, summed over labels; as `name{phase}` over all labels except the phase."""
        sums: dict[str, float] = defaultdict(float)
        if "metrics" not in self.addresses:
            return sums
        with urllib.request.urlopen(f"http://{self.addresses['metrics']}/metrics") as response:
            text = response.read().decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                sums[sample.name] += sample.value
                if phase := sample.labels.get("phase"):
                    sums[f"{sample.name}{{{phase}}}"] += sample.value
        return sums


def mean_of(name: str, growth: Mapping[str, float]) -> float:
    """Returns the mean of a histogram's new values, by the growth of the metrics."""
    return growth[f"{name}_sum"] / growth[f"{name}_count"]
