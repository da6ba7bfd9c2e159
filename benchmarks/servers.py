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

from attendant.server.bench.command import addresses
from attendant.server.bench.load import Answered, Load
from benchmarks.decoding import NUM_WORKERS
from benchmarks.harness import KEEP_MEMORY, Process, System, Unavailable, Visit, Visits
from benchmarks.job import program
from benchmarks.workload import Context, Work, equal_work, generate_request

START_SECONDS = 180.0
WARM_UP_SECONDS = 1.0
UNARY = "/attendant.v1.Seq2Seq/Generate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server that can be started and called.

    Attributes:
        key, name, about: as in `System`.
        command: makes what is missing; returns the command, which prints `serving on HOST:PORT` when it is ready, and
            may add `metrics on HOST:PORT`. Raises Unavailable.
        requests: serialized; the load generator sends them in turn.
        method: the full path of its unary call.
        max_starts: attempts to start it.
        keeps_memory: glibc keeps freed memory (KEEP_MEMORY), as in all systems that are timed.
    """

    key: str
    name: str
    command: Callable[[], Sequence[str]]
    requests: Sequence[bytes]
    method: str = UNARY
    max_starts: int = 1
    keeps_memory: bool = True
    about: str = ""


def requests_of(work: Work) -> list[bytes]:
    return [generate_request(source, num_steps) for source, num_steps in work]


def attendant_server(
    context: Context,
    *,
    key: str = "attendant",
    name: str = "Attendant",
    bundle: Path | None = None,
    requests: Sequence[bytes] = (),
    num_workers: int = NUM_WORKERS,
    num_threads: int = NUM_WORKERS,
    per_request: bool = False,
) -> Server:
    """Returns our server, in int8.

    Args:
        bundle: if None, the context's.
        requests: if empty, sentences of the workload's length.
        num_threads: threads of all workers together.
        per_request: batches whole requests instead of steps.
    """
    layout = f"--workers {num_workers} --threads {num_threads}"
    # The load generator acts as many clients, and the server sees one address.
    options = f"--port 0 --metrics-port 0 --log-level warning --precision int8 {layout} --light-rows 4096".split()

    def command() -> list[str]:
        arguments = [str(bundle or context.bundle), *options]
        if per_request:
            return program("own_worker:serve_per_request", arguments=arguments)
        return [sys.executable, "-m", "server", *arguments]

    requests = requests or requests_of(equal_work(context.workload))
    return Server(key=key, name=name, command=command, requests=requests, about=f"int8, {layout}")


def empty_service(requests: Sequence[bytes], *, refuses: bool = False) -> Server:
    """Returns a service that does nothing or refuses everything, to measure the time that gRPC itself takes."""
    command = program("programs:serve_nothing", refuses=refuses)
    name = "refusing" if refuses else "empty"
    return Server(key=name, name=f"{name} service", command=lambda: command, requests=requests)


def under(server: Server, loads: Mapping[str, Load], warm_ups: Sequence[Load] = ()) -> System:
    """Returns a server under each of the loads in every round, by the endings of their figures' names.

    Args:
        warm_ups: before the first round. If empty, each of the loads, for at most a second.
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
    """Runs a server and its load generator. Raises Unavailable."""
    command = server.command()
    for num_left in reversed(range(server.max_starts)):
        with ExitStack() as exits:
            process = exits.enter_context(Process(command, KEEP_MEMORY if server.keeps_memory else None))
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
def load_generator(target: str, requests: Sequence[bytes], method: str = UNARY) -> Iterator[Process]:
    """Runs a load generator, which sends these requests in turn: questions are `Load`s, answers `Answered`s.

    Args:
        method: the full path of the unary call.
    """
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
            message; the processor time of the server and of the load generator per answer in ms; the number of answers.
            If the server has metrics: the mean rows of its steps and the share of useful cells.
        """
        return self.watched(load)[0]

    def watched(self, load: Load) -> tuple[dict[str, float], Mapping[str, float]]:
        """Returns the figures of `load`, and the growth of the server's metrics during it (see `metrics`)."""
        before, processes = self.metrics(), {"cpu_ms": self.process, "generator_ms": self.generator}
        cpu_seconds = {name: process.cpu_seconds() for name, process in processes.items()}
        self.generator.ask(asdict(load))
        answered = Answered(**self.generator.answer())
        num = len(answered.latencies)
        if answered.failures or not num:
            raise Unavailable(f"{len(answered.failures)} requests failed: {answered.failures[:1]}")
        cpu = {name: 1e3 * (process.cpu_seconds() - cpu_seconds[name]) / num for name, process in processes.items()}
        p50, p99 = (1e3 * np.percentile(answered.latencies, (50, 99))).tolist()
        samples = {"speed": num / answered.seconds, "p50": p50, "p99": p99, **cpu, "answers": num}
        if answered.firsts:
            samples["first_p50"], samples["first_p99"] = (1e3 * np.percentile(answered.firsts, (50, 99))).tolist()
        growth = {name: value - before.get(name, 0.0) for name, value in self.metrics().items()}
        if growth:
            samples["step_rows"] = mean_of("attendant_step_rows", growth)
            samples["efficiency"] = mean_of("attendant_batch_efficiency_ratio", growth)
        return samples, growth

    def metrics(self) -> Mapping[str, float]:
        """Returns the samples of its metrics, summed over labels; as `name{phase}` over all labels except the phase."""
        if "metrics" not in self.addresses:
            return {}
        with urllib.request.urlopen(f"http://{self.addresses['metrics']}/metrics") as response:
            text = response.read().decode()
        sums: dict[str, float] = defaultdict(float)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                sums[sample.name] += sample.value
                if phase := sample.labels.get("phase"):
                    sums[f"{sample.name}{{{phase}}}"] += sample.value
        return sums


def mean_of(name: str, growth: Mapping[str, float]) -> float:
    """Returns the mean of a histogram's new values."""
    return growth[f"{name}_sum"] / growth[f"{name}_count"]
