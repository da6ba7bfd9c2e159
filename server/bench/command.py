"""`attendant bench BUNDLE`: see --help."""

import argparse
import asyncio
import itertools
import math
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from attendant.runtime.bundle.bundle import Bundle, open_bundle
from attendant.runtime.bundle.manifest import Distribution
from attendant.runtime.command import Command, CommandParser, require
from attendant.runtime.errors import UserError, one_line
from attendant.runtime.files import read_text, translate_os_errors, write_json
from attendant.runtime.process import available_cpus, limited, processor
from attendant.server.bench.load import Load, run_load
from attendant_client.v1 import seq2seq_pb2 as messages

METHOD = "/attendant.v1.Seq2Seq/Generate"
CLIENTS_PER_CPU = (4, 32)
MAX_CLIENTS = 1000  # Calls that a server accepts from one connection at once.
RATE_SHARES = (0.25, 0.5, 0.75, 0.9)  # Rates of random arrivals, as shares of the best layout's capacity.
RECOMMENDED_SHARE = 0.75  # At higher shares of the capacity, waiting times grow fast.
RATE_VISITS = 2  # Random arrivals are measured for this many times the seconds of a closed loop.
MIN_VISIT_SECONDS = 0.2
BUSY_GENERATOR = 0.9  # Share of a core above which the load generator may be the bottleneck.
SPARE_MEMORY = 1.5
END_SECONDS = 10.0
NUM_SOURCES = 512
NO_LIMIT = str(1 << 16)
ONE_ADDRESS = ("--light-rows", NO_LIMIT, "--max-waiting", NO_LIMIT, "--max-wait-seconds", NO_LIMIT)
"""The load generator acts as many clients, and the server sees one address."""

OMITTED_VARIABLES = tuple(
    f"ATTENDANT_{name}"
    for name in (
        *("BUNDLES", "TLS_", "TOKENS", "ADMIN_TOKENS", "HEALTH", "REFLECTION"),
        *("NO_HTTP", "MAX_CLIENT_", "CLIENT_"),
    )
)
"""Prefixes of variables that the measured server is started without: calls come from one address of this machine."""

DESCRIPTION = """\
Measures how fast a bundle is served on this host: requests per second and latency with one worker, two, and so on, in
closed loops with several numbers of clients; then, with the best of them, latency at random arrivals. The load
generator takes its share of the host. The server's other options come from the environment, as in a deployment:

  ATTENDANT_PRECISION=fp32 attendant bench BUNDLE
"""


@dataclass(frozen=True, slots=True)
class Layout:
    """The workers of a server, and the threads of all of them together."""

    workers: int
    threads: int

    def __str__(self) -> str:
        return f"--workers {self.workers} --threads {self.threads}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """The figures of one load.

    Attributes:
        clients: of a closed loop. 0: arrivals at random.
        rate: planned requests per second; in a closed loop those answered.
        p50_ms, p99_ms: of the latency; of arrivals at random from the planned moment of each.
        resident_mib: of all the server's processes, after the load.
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

    def __str__(self) -> str:
        load = f"{self.clients} clients" if self.clients else f"{self.rate:,.0f}/s at random"
        speed = f"{self.answered_per_second:,.1f} requests/s, p50 {self.p50_ms:,.1f} ms, p99 {self.p99_ms:,.1f} ms"
        return f"{self.layout}, {load}: {speed}, {self.resident_mib:,.0f} MiB"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """All figures, as in bench.json.

    Attributes:
        closed, open: visits in closed loops, and at random arrivals by rising rate.
        best: the layout that answers most requests from many clients.
        capacity: its requests per second.
    """

    model: str
    processor: str
    sent: str
    closed: list[Visit]
    open: list[Visit]
    best: Layout
    capacity: float


def command(name: str) -> Command:
    """Returns the command `attendant bench`."""
    parser = CommandParser(
        prog="attendant bench", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("bundle", metavar="BUNDLE", type=Path, help="a folder made by `attendant export`")
    data_help = "texts to send, one a line; of lines with tabs the first column"
    option("--data", metavar="FILE", type=Path, help=f"{data_help} (default: the bundle's golden examples)")
    option("--beam-size", metavar="N", type=int, help="beam size of the requests (default: the bundle's)")
    option(
        "--seconds", metavar="SECONDS", type=float, default=100.0, help="duration of the load (default: %(default)g)"
    )
    output_help = "for bench.json, which is replaced (default: %(default)s)"
    option("--output", metavar="FOLDER", type=Path, default=Path("attendant-bench"), help=output_help)
    return Command(parser, _run)


def _run(options: argparse.Namespace) -> None:
    require("onnxruntime")
    if not 0 < options.seconds < math.inf:
        raise UserError(f"--seconds is {options.seconds:g}, must be a positive number of seconds")
    bundle = limited(lambda: open_bundle(options.bundle), f"the bundle {options.bundle} is refused")
    max_beam_size = bundle.manifest.limits.max_beam_size
    if options.beam_size is not None and not 1 <= options.beam_size <= max_beam_size:
        raise UserError(f"--beam-size is {options.beam_size}, must be 1 to {max_beam_size} with this bundle")
    payloads, sent = requests_for(bundle, options.data, options.beam_size)
    model, num_cpus = f"{bundle.manifest.name} {bundle.manifest.version}", available_cpus()
    print(f"{model}, {num_cpus} CPUs; sent: {sent}\nprocessor: {processor()}", flush=True)
    _refuse_unwritable(options.output)
    result = measure(options.bundle, payloads, options.seconds, {"model": model, "sent": sent})
    print(advice(options.bundle, result))
    with translate_os_errors(options.output):
        options.output.mkdir(parents=True, exist_ok=True)
    write_json(options.output / "bench.json", asdict(result))
    print(f"written: {options.output / 'bench.json'}")


def _refuse_unwritable(folder: Path) -> None:
    """Raises CantWrite if the folder can't be written, or made: after the measurement, the figures would be lost."""
    path = folder.absolute()
    existing = next(place for place in (path, *path.parents) if place.exists())
    with translate_os_errors(folder):
        tempfile.TemporaryFile(dir=existing).close()


def requests_for(bundle: Bundle, data: Path | None, beam_size: int | None) -> tuple[list[bytes], str]:
    """Returns serialized requests, the same each time, and a description of them.

    Args:
        data: texts, one a line, up to the first tab. If None, tokens of the bundle's golden examples, in the lengths
            that the bundle has recorded of real sources, if it has.
        beam_size: if None, the bundle's.

    Raises:
        UserError: the file can't be read or has no text that the model takes; the bundle has no golden examples.
    """
    generator, limit = random.Random(1), bundle.manifest.limits.max_source_tokens
    tokenizer = bundle.source_tokenizer
    decoding = messages.DecodingOptions(beam_size=beam_size) if beam_size else None
    request = partial(messages.GenerateRequest, decoding=decoding)
    if data is not None:
        texts = [line.split("\t")[0] for line in read_text(data, f"--data {data}").splitlines()]
        sample = generator.sample(texts, min(NUM_SOURCES, len(texts)))
        encoded = [(text, tokenizer.encode(text)) for text in sample]
        fitting = [(text, ids) for text, ids in encoded if 1 <= len(ids) <= limit]
        if not fitting:
            raise UserError(f"--data {data}: none of its lines is a text of 1 to {limit} tokens, as the model takes")
        others = f"; {len(sample) - len(fitting)} others are empty or too long" if len(fitting) < len(sample) else ""
        requests = [
            request(text=text) if tokenizer.takes_texts else request(tokens={"tokens": tokenizer.tokens_of(ids)})
            for text, ids in fitting
        ]
        about = f"{len(fitting)} of the {len(texts)} lines of {data}{others}"
    else:
        sources = [list(example.source_tokens) for example in bundle.golden]
        if not sources:
            raise UserError("the bundle has no golden examples to send: name a file of texts with --data")
        about = f"{len(sources)} golden examples of the bundle; --data FILE sends your own texts"
        if (reference := bundle.manifest.reference) is not None:
            lengths = _draw_lengths(reference.signals["source_tokens"], generator)
            # A source has at least one token, so `length` sources have enough.
            sources = [
                list(itertools.chain.from_iterable(generator.choices(sources, k=length)))[: min(length, limit)]
                for length in lengths
            ]
            about = f"tokens of golden examples, in the lengths of {reference.data}; --data FILE sends your own texts"
        requests = [request(tokens={"tokens": tokens}) for tokens in sources]
    return [each.SerializeToString() for each in requests], about


def _draw_lengths(recorded: Distribution, generator: random.Random) -> list[int]:
    """Draws lengths from the distribution; those above its last edge are up to a tenth longer."""
    upper = [*map(round, recorded.edges), round(1.1 * round(recorded.edges[-1])) + 1]
    bins = list(zip([0, *upper], upper, strict=False))
    return [generator.randint(min(a + 1, b), b) for a, b in generator.choices(bins, recorded.shares, k=NUM_SOURCES)]


def layouts(num_cpus: int) -> list[Layout]:
    """Returns one worker with all threads, then twice as many workers each time, up to one per processor."""
    return [Layout(1 << power, num_cpus) for power in range(num_cpus.bit_length()) if 1 << power < num_cpus] + [
        Layout(num_cpus, num_cpus)
    ]


def measure(bundle: Path, payloads: Sequence[bytes], seconds: float, facts: Mapping[str, str]) -> BenchResult:
    """Loads a server of each layout in closed loops, then one of the best layout at random arrivals; prints each visit.

    Args:
        seconds: of load, all visits together; each server also takes a moment to start.
        facts: `model` and `sent` of the result.

    Raises:
        UserError: a server does not start or refuses requests; too little time.
    """
    num_cpus = available_cpus()
    candidates, clients = layouts(num_cpus), sorted({1, *(min(MAX_CLIENTS, n * num_cpus) for n in CLIENTS_PER_CPU)})
    num_visits = (1 + len(clients)) * len(candidates) + 1 + RATE_VISITS * len(RATE_SHARES)
    if seconds < MIN_VISIT_SECONDS * num_visits:
        least = math.ceil(MIN_VISIT_SECONDS * num_visits)
        raise UserError(f"--seconds is {seconds:g}, must be {least} or more on this host of {num_cpus} CPUs")
    many = Load(kind="closed", num_clients=clients[-1], seconds=seconds / num_visits)
    closed = [
        visit
        for layout in candidates
        for visit in _visits(bundle, payloads, layout, many, [replace(many, num_clients=number) for number in clients])
    ]
    best = max(closed[len(clients) - 1 :: len(clients)], key=lambda visit: visit.answered_per_second)
    arrivals = [
        Load(kind="open", rate=share * best.answered_per_second, seconds=RATE_VISITS * many.seconds)
        for share in RATE_SHARES
    ]
    opened = list(_visits(bundle, payloads, best.layout, many, arrivals))
    capacity = max(visit.answered_per_second for visit in closed if visit.layout == best.layout)
    return BenchResult(**facts, processor=processor(), closed=closed, open=opened, best=best.layout, capacity=capacity)


def _visits(
    bundle: Path, payloads: Sequence[bytes], layout: Layout, warm_up: Load, loads: Sequence[Load]
) -> Iterator[Visit]:
    """Starts a server, warms it up, and loads it. Raises UserError if it does not start or refuses a request."""
    requests = itertools.cycle(payloads)
    with serving(bundle, str(layout).split()) as (target, pid):
        for number, load in enumerate((warm_up, *loads)):
            cpu_seconds = time.process_time()
            results = asyncio.run(run_load(target, METHOD, requests, load))
            num_answers, num_failures = len(results.latencies), len(results.failures)
            if num_failures:
                refused = f"{num_failures} of {num_failures + num_answers} requests"
                raise UserError(f"the server refused {refused}: {one_line(results.failures[0])}")
            if not num_answers:
                reached = f"within {load.seconds:.1f} s no request was sent at {load.rate:.1f} requests/s"
                raise UserError(f"{reached}: raise --seconds")
            p50, p99 = (1e3 * np.percentile(results.latencies, (50, 99))).tolist()
            visit = Visit(
                layout=layout,
                clients=load.num_clients if load.kind == "closed" else 0,
                rate=load.rate or num_answers / results.seconds,
                answered_per_second=num_answers / results.seconds,
                p50_ms=p50,
                p99_ms=p99,
                resident_mib=group_resident_mib(pid),
                generator_share=(time.process_time() - cpu_seconds) / results.seconds,
            )
            if number:  # not the warm-up
                print(visit, flush=True)
                yield visit


@contextmanager
def serving(bundle: Path, options: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Runs a server; yields HOST:PORT of its gRPC and its process group.

    Options that are not named come from the environment, as in a deployment.

    Raises:
        UserError: the server does not start; its last line.
    """
    command = [sys.executable, "-m", "attendant.server", str(bundle), "--host", "127.0.0.1", "--log-level", "warning"]
    command += ["--port", "0", "--metrics-port", "0", *ONE_ADDRESS, *options]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(OMITTED_VARIABLES)}
    environment["PYTHONSAFEPATH"] = "1"  # as `attendant serve` sets it
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log,
        # A process group of its own: Ctrl-C reaches the bench alone, which then ends the server.
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True, process_group=0
        ) as process,
    ):
        try:
            assert process.stdout is not None
            ports = addresses(process.stdout.readline())
            if not ports:
                process.wait(END_SECONDS)
                log.seek(0)
                lines = log.read().strip().splitlines()
                raise UserError(one_line(lines[-1]) if lines else "the server exited before serving, without a message")
            yield ports["serving"], process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS)
            process.kill()


def addresses(output: str) -> dict[str, str]:
    """Returns HOST:PORT of `serving` and of `metrics` from a server's output; empty until the server serves."""
    line = re.search(r"serving on .*\n", output)
    return dict(re.findall(r"(serving|metrics) on (\S+:\d+)", line[0])) if line else {}


def group_resident_mib(group: int) -> float:
    """Returns the resident memory of a process group; 0 if the system has no /proc."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process has ended meanwhile
            if int((folder / "stat").read_text().rpartition(")")[2].split()[2]) == group:
                total += resident_bytes(int(folder.name))
    return total / 2**20


def resident_bytes(pid: int) -> int:
    """Returns the resident memory of a process; anonymous pages shared by forked processes are divided among them.

    Raises:
        OSError: the process has ended, or the system has no /proc.
    """
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    kilobytes = {name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines)}
    anonymous = kilobytes.get("Anonymous", 0)
    return 1024 * (kilobytes.get("Rss", 0) - anonymous + kilobytes.get("Pss_Anon", anonymous))


def advice(bundle: Path, result: BenchResult) -> str:
    """Returns the options to deploy with and the latency to expect, as several lines."""
    best, visits = result.best, result.closed + result.open
    resident_mib = max(visit.resident_mib for visit in visits if visit.layout == best)
    planned = min(result.open, key=lambda visit: abs(visit.rate - RECOMMENDED_SHARE * result.capacity))
    lines = [
        f"best here: {best}",
        f"  attendant serve {shlex.quote(str(bundle))} {best}",
        f"  in a container: ATTENDANT_WORKERS={best.workers} ATTENDANT_THREADS={best.threads}"
        + (f", memory limit {SPARE_MEMORY * resident_mib:,.0f} MiB" if resident_mib else ""),
        f"  plan for {planned.rate:,.0f} requests/s on a host like this: p50 {planned.p50_ms:,.1f} ms, "
        f"p99 {planned.p99_ms:,.1f} ms",
    ]
    alone = min((visit for visit in result.closed if visit.clients == 1), key=lambda visit: visit.p50_ms)
    if alone.layout != best:
        lines.append(f"  a request alone is fastest with {alone.layout}: p50 {alone.p50_ms:,.1f} ms")
    if any(visit.generator_share > BUSY_GENERATOR for visit in visits):
        lines.append("  the load generator was busy all the time: the server may be faster than this")
    return "\n".join(lines)
